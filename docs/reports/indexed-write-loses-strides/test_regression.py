# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] index_copy_, masked_fill_ and the like make a tensor contiguous: other strides, and as_strided reads other values

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask):
        transposed = x.transpose(-2, -1)
        clone = transposed.clone()
        clone.index_copy_(0, mask, transposed)
        return clone


def inputs():
    return [
        torch.randn((T, T), generator=rng(0)),
        torch.randint(0, 2, (T,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_indexed_write_loses_strides(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
