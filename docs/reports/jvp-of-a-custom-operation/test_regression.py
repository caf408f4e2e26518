# Owner(s): ["module: custom-operators"]
"""torch.func.jvp of a custom operation gives a tangent of 0, without an error

The method below is for test/test_custom_ops.py, class TestCustomOpAPI.
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


def block2_function(x: torch.Tensor) -> torch.Tensor:
    out = x.exp()
    return out


block2 = torch.library.custom_op("case_c1958b::block2", block2_function, mutates_args=())
block2.register_fake(block2_function)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            out = block2(x)
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
    ]


class Plain(Module):
    def forward(self, x):
        def block(x):
            out = block2_function(x)
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


class RegressionTest(unittest.TestCase):
    def test_jvp_of_a_custom_operation(self):
        with torch.no_grad():
            actual = Module().eval()(*inputs())
            exact = Plain().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
            # atol: half of this bug's error, 0.71
            torch.testing.assert_close(actual.double(), exact, atol=0.36, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
