# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] masked_fill_ or lerp_ on a transposed view of a viewed input: compiling raises ValueError, cannot view a tensor

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

H = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask):
        viewed = x.view(1, H, H, H)
        transposed = viewed.transpose(-2, -1)
        transposed.masked_fill_(mask, 0.0)
        return transposed


def inputs():
    return [
        torch.randn((H, H * H), generator=rng(0)),
        torch.ones((H,), dtype=torch.bool),
    ]


class RegressionTest(unittest.TestCase):
    def test_masked_fill_of_a_view(self):
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
