# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] n // 0.3, n a float argument of forward, is the floor of the rounded quotient: -3.0 // 0.3 is -10, in Python -11

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, n):
        out = x * (n // 0.3)
        return out


def inputs(n=0.75):
    return [
        torch.randn((S,), generator=rng(0)),
        n,
    ]


def calls(module):
    yield inputs()
    yield inputs(n=-3.0)


class RegressionTest(unittest.TestCase):
    def test_floor_division_of_a_float(self):
        with torch.no_grad():
            def run(module, call, double=False):
                for given in calls(module):
                    given = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in given] if double else given
                    out = call(*given)
                return out

            module = Module().eval()
            eager = run(module, module)
            module = Module().eval()
            compiled = torch.compile(module)
            actual = run(module, compiled)
            module = Module().eval().double()
            exact = run(module, module, double=True)
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 1.5
            torch.testing.assert_close(actual.double(), exact, atol=0.77, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
