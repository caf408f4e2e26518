# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] fill_ or zero_ of an expanded tensor: wrong values in the tensor that was expanded

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        base = x.clone()
        rows = base.expand(3, D)
        rows.fill_(2.0)
        return base


def inputs():
    return [
        torch.randn((D,), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_fill_of_an_expanded_tensor(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            print(f"eager up to {eager.abs().max():.2g}; compiled off by {(actual - eager).abs().max():.2g}")
            # atol: half of this bug's error, 8.4
            torch.testing.assert_close(actual, eager, atol=4.2, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
