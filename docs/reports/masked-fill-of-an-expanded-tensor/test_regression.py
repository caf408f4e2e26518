# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] masked_fill_ or `g[mask] = value` on an expanded tensor, such as the gradient of a sum: wrong values

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B = 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, mask, x):
        def block(x):
            clone = x.clone()
            return clone

        clone = torch.func.grad(lambda *given: block(*given).sum())(x)
        clone.masked_fill_(mask, 0.0)
        return clone


def inputs():
    return [
        torch.ones((1,), dtype=torch.bool),
        torch.randn((B,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_masked_fill_of_an_expanded_tensor(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            print(f"eager up to {eager.abs().max():.2g}; compiled off by {(actual - eager).abs().max():.2g}")
            # atol: half of this bug's error, 2
            torch.testing.assert_close(actual, eager, atol=1, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
