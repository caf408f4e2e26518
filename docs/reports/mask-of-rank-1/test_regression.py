# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU with a mask of rank 1 raises IndexError: Dimension out of range; the MATH backend takes it

The method below is for test/test_transformers.py, class TestSDPA.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, T, D, V = 2, 3, 4, 5, 6, 7


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, mask):
        q_t = q.permute(0, 2, 1, 3)
        k_t = k.permute(0, 2, 1, 3)
        kt = k_t.transpose(-2, -1)
        scores = q_t @ kt
        scores2 = scores + mask
        probs = scores2.softmax(dim=-1)
        v_t = v.permute(0, 2, 1, 3)
        out = probs @ v_t
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, T, H, D), generator=rng(1)),
        torch.randn((B, T, H, V), generator=rng(3)),
        torch.ones((T,), dtype=torch.bool),
    ]


class RegressionTest(unittest.TestCase):
    def test_mask_of_rank_1(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=False)(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
