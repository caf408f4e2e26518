# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CUDA: RuntimeError, query is not correctly aligned, for padded rows (efficient backend)

The method below is for test/test_transformers.py, class TestSDPA.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

B, H, S, T, D, V = 1, 3, 2, 5, 4, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        kt = k.permute(0, 2, 3, 1)
        scores = torch.matmul(q_t, kt)
        scores2 = scores / 8
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        scores3 = torch.where(le, scores2, torch.finfo(scores2.dtype).min)
        scores4 = scores3.contiguous()
        log_softmax = F.log_softmax(scores4, dim=-1)
        exp = log_softmax.exp()
        scaled = exp * 1
        dropout = F.dropout(scaled, 0.0, self.training)
        clone = transposed2.clone()
        product = dropout.matmul(clone)
        return product, transposed


def inputs():
    return [
        F.pad(torch.randn((B, B, S, D * H), generator=rng(0)), (0, 3))[..., :-3],
        torch.randn((B, T, H, D), generator=rng(1)),
        torch.randn((B, T, H, V), generator=rng(2)),
    ]


class WithKernel(Module):
    @sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        product = nn.functional.scaled_dot_product_attention(q_t, transposed, transposed2, scale=0.125, attn_mask=le[None, None])
        return product, transposed


def move(x, exact=False):  # in place and with its strides: a tensor that two calls get stays one tensor
    flat = x.data.as_strided([x.untyped_storage().nbytes() // x.element_size()], [1], 0).cuda()
    flat = flat.double() if exact and flat.is_floating_point() else flat
    x.data = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    return x


class RegressionTest(unittest.TestCase):
    def test_efficient_alignment(self):
        with torch.no_grad():
            Module().eval().cuda()(*[move(x) for x in inputs()])
            try:
                WithKernel().eval().cuda()(*[move(x) for x in inputs()])
                torch.cuda.synchronize()  # raises the GPU's errors
            except Exception as error:
                raise AssertionError("only the kernel raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
