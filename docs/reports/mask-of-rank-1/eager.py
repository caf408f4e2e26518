import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = torch.randn(2, 3, 4, 8)
mask = torch.zeros(4)  # broadcastable to the weights, as the documentation asks
with sdpa_kernel(SDPBackend.MATH):
    expected = scaled_dot_product_attention(q, q, q, attn_mask=mask)
actual = scaled_dot_product_attention(q, q, q, attn_mask=mask)
torch.testing.assert_close(actual, expected)
