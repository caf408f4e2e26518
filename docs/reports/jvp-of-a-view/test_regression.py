# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] torch.func.jvp of a function that takes a view of its argument, itself a view of a larger tensor: INTERNAL ASSERT FAILED, has_fw_view

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
import torch.nn.functional as F
from torch import nn

H, V = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            out = x.repeat_interleave(H, 0)
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


def inputs():
    return [
        F.pad(torch.randn((V,), generator=rng(0)), (1, 0))[1:],
    ]


class RegressionTest(unittest.TestCase):
    def test_jvp_of_a_view(self):
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
