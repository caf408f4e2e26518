# Owner(s): ["module: inductor"]
"""[Inductor] an elementwise operation in bfloat16 or float16 with an expanded, transposed operand: other strides than eager's

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, T, D, V, L = 2, 3, 4, 1, 1, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = x.transpose(-4, -1)
        expand = transposed.expand(-1, H, -1, -1)
        out = y > expand
        return out


def inputs():
    return [
        torch.randn((T, 1, B, D), generator=rng(0)).to(torch.bfloat16),
        torch.randn((L, 1, B, V), generator=rng(1)).to(torch.bfloat16),
    ]


class RegressionTest(unittest.TestCase):
    def test_expanded_operand_in_half_precision(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
