# Owner(s): ["module: pt2-dispatcher"]
"""[Inductor] clamp of integers by a float that forward takes as an argument gives integers: 0.5 becomes 0

The method below is for test/test_decomp.py, class DecompOneOffTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, least):
        clamped = x.clamp(min=least)
        out = clamped.to(torch.float32)
        return out


def inputs(least=0.5):
    return [
        torch.randint(0, 3, (S,), generator=rng(0)),
        least,
    ]


def calls(module):
    yield inputs()
    yield inputs(least=1.5)


class RegressionTest(unittest.TestCase):
    def test_clamp_of_integers_by_a_float(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    out = call(*given)
                return out

            module = Module().eval()
            eager = run(module, module)
            module = Module().eval()
            compiled = torch.compile(module)
            actual = run(module, compiled)
            print(f"eager up to {eager.abs().max():.2g}; compiled off by {(actual - eager).abs().max():.2g}")
            # atol: half of this bug's error, 0.5
            torch.testing.assert_close(actual, eager, atol=0.25, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
