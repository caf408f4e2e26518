# Owner(s): ["module: inductor"]
"""[Inductor] sums, maxima, minima and their places of computed uint8 and int8 are wrong on the CPU from 16 elements on

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 16


class Module(nn.Module):
    def forward(self, mask):
        difference = mask - 1
        out = difference.sum(dim=-1, dtype=torch.uint8)
        return out


def inputs():
    return [
        torch.full((D,), 1.0).to(torch.uint8),
    ]


class RegressionTest(unittest.TestCase):
    def test_narrow_sum_of_inactive_lanes(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            print(f"eager {eager}, compiled {actual}")
            torch.testing.assert_close(actual, eager, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
