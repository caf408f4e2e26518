# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] fill_ or zero_ of an expanded argument: raises, right in eager

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        x.fill_(2.0)
        out = -x
        return out


def inputs():
    return [
        (lambda x: x[:1].expand_as(x))(torch.randn((2, D), generator=rng(0))),
    ]


class RegressionTest(unittest.TestCase):
    def test_expanded_argument_filled(self):
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
