# Owner(s): ["module: dynamo"]
"""[Dynamo] max(n, 1) and min(n, 2), n a float argument of forward, are floats even where Python gives the integer

The method below is for test/dynamo/test_misc.py, class MiscTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 2


class Module(nn.Module):
    def forward(self, x, n):
        moved = x + max(n, 1)
        out = moved.to(torch.int64)
        return out


def inputs(n=2.0):
    return [
        torch.tensor([16777217, 1], dtype=torch.int64),
        n,
    ]


def calls(module):
    yield inputs()
    yield inputs(n=0.25)


class RegressionTest(unittest.TestCase):
    def test_larger_of_a_float_and_1(self):
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
            print(f"eager {eager}, compiled {actual}")
            torch.testing.assert_close(actual, eager, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
