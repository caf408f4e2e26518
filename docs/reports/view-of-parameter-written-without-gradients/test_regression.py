# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] under no_grad a view of a parameter that is written to and returned: compiling raises RuntimeError, a view was created in no_grad mode

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((1,), generator=rng(0)))

    def forward(self, x):
        unsqueeze = self.weight.unsqueeze(0)
        unsqueeze.copy_(x)
        return unsqueeze


def inputs():
    return [
        torch.randn((1,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_view_of_parameter_written_without_gradients(self):
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
