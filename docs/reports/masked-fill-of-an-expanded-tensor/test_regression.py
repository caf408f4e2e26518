# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] masked_fill_ or `g[mask] = value` on an expanded tensor, such as the gradient of a sum: wrong values

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.13.0, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class Plain(Module):
    def forward(self, mask, x):
        def block(x):
            clone = x.clone()
            return clone

        clone = torch.func.grad(lambda *given: block(*given).sum())(x)
        clone.masked_fill_(mask, 0.0)
        return clone


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_masked_fill_of_an_expanded_tensor(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Plain().eval().double()
        expected = exact(*[x.double() if x.is_floating_point() else x for x in inputs()])
        # atol: 10 times eager's error against float64, 0.0e+00,
        # and 8 units in the last place of the largest value, 0 in float32
        self.assertEqual(actual.double(), expected, atol=0.0e+00, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
