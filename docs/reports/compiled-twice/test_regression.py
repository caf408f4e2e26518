# Owner(s): ["module: dynamo"]
"""[Dynamo] torch.compile(torch.compile(module)) is a function that skips the module's hooks: wrong result

The method below is for test/dynamo/test_misc.py, class MiscTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.exp()
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)),
    ]


def calls(module):
    module.register_forward_hook(lambda _, given, result: 2 * result)
    yield inputs()


class RegressionTest(unittest.TestCase):
    def test_compiled_twice(self):
        with torch.no_grad():
            def run(module, call, double=False):
                for given in calls(module):
                    given = [x.double() for x in given] if double else given
                    out = call(*given)
                return out

            module = Module().eval()
            eager = run(module, module)
            module = Module().eval()
            compiled = torch.compile(torch.compile(module, dynamic=False), dynamic=False)
            actual = run(module, compiled)
            module = Module().eval().double()
            exact = run(module, module, double=True)
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 4.7
            torch.testing.assert_close(actual.double(), exact, atol=2.4, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
