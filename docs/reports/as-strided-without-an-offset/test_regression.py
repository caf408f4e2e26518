# Owner(s): ["module: inductor"]
"""[Inductor] as_strided without an offset, of an element of a computed tensor, such as x[4], reads the first element: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
fails in 2.11.0, 2.13.0, 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

D = 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        D = x.size(0)
        neg = -x
        narrow = neg[..., 4:D]
        out = narrow.as_strided((1,), (1,))
        return out


def inputs():
    return [
        torch.randn((D,), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_as_strided_without_an_offset(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Module().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 10 times eager's error against float64, 0.0e+00,
        # and 8 units in the last place of the largest value, 1.1 in float32
        self.assertEqual(actual.double(), expected, atol=1.0e-06, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
