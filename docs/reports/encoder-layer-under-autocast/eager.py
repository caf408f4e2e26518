import torch

layer = torch.nn.TransformerEncoderLayer(8, 2, 4, dropout=0.0, batch_first=True).eval()
x = torch.randn(2, 3, 8)
dtypes = []
for fast in (True, False):
    torch.backends.mha.set_fastpath_enabled(fast)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        dtypes.append(layer(x).dtype)
torch.backends.mha.set_fastpath_enabled(True)
assert dtypes[0] == dtypes[1], f"fast path {dtypes[0]}, without it {dtypes[1]}"
