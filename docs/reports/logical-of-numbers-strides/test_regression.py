# Owner(s): ["module: inductor"]
"""[Inductor] torch.logical_and, logical_or or logical_xor of numbers, an operand broadcast, the other permuted: other strides than eager's

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, A, C = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = y.permute(2, 0, 1)
        out = torch.logical_and(x, transposed)
        return out


def inputs():
    return [
        torch.randn((B,), generator=rng(0)),
        torch.randn((A, B, C), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_logical_of_numbers_strides(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
