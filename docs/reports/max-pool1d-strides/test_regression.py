# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] max_pool1d of a transposed tensor on the CPU, without gradients: other strides than eager's

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
import torch.nn.functional as F
from torch import nn

B, T, D = 2, 4, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        transposed = x.transpose(-2, -1)
        out = F.max_pool1d(transposed, 2)
        return out


def inputs():
    return [
        torch.randn((B, T, D), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_max_pool1d_strides(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
