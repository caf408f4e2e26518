# Owner(s): ["module: flex attention"]
"""[Inductor] flex_attention on the CPU without vector instructions (cpp.simdlen=1): compiling raises AssertionError, trans_b requires AVX512 or AVX2

The method below is for test/inductor/test_flex_attention.py, class TestFlexAttention.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

B, H, S, T, D, V = 2, 3, 4, 5, 6, 7


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = flex_attention(q, k, v)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, V), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_flex_attention_without_vectors(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=False, options={'cpp.simdlen': 1})(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
