# Owner(s): ["module: custom-operators"]
"""torch.func.jvp of a custom operation gives a tangent of 0, without an error

The method below is for test/test_custom_ops.py, class TestCustomOpAPI.
2.11.0, 2.13.0, 2.15.0: wrong in eager
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_jvp_of_a_custom_operation(self):
        module = Module().eval()
        actual = module(*inputs())
        exact = Plain().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 0.05% of the largest value, 0.71
        self.assertEqual(actual.double(), expected, atol=3.6e-04, rtol=0)


if __name__ == "__main__":
    run_tests()
