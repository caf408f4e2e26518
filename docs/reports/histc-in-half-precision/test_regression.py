# Owner(s): ["module: sdpa"]
"""torch.histc in half precision on the CPU counts and finds bins in that dtype: counts stop at 2048 in float16, and large elements fall into bin 0

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0, 2.13.0, 2.15.0: wrong in eager
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

T = 64


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = torch.histc(x, bins=400, min=0, max=400)
        return out


def inputs():
    return [
        (torch.randn((T,), generator=rng(0)) * 300.0).to(torch.float16),
    ]


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_histc_in_half_precision(self):
        module = Module().eval()
        actual = module(*inputs())
        exact = Module().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 5.00% of the largest value, 1
        self.assertEqual(actual.double(), expected, atol=5.0e-02, rtol=0)


if __name__ == "__main__":
    run_tests()
