# Owner(s): ["module: inductor"]
"""[Inductor] as_strided of a slice or an expansion of a computed tensor reads the view as if it were its base: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

A, B = 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        A = x.size(0)
        B = x.size(1)
        negated = -x
        wide = negated.expand(3, A, B)
        read = wide.as_strided((A * B,), (1,))
        out = -read
        return out


def inputs():
    return [
        torch.randn((A, B), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_as_strided_of_a_view(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Module().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 10 times eager's error against float64, 0.0e+00,
        # and 8 units in the last place of the largest value, 2.2 in float32
        self.assertEqual(actual.double(), expected, atol=2.1e-06, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
