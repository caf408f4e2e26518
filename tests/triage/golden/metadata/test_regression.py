# Owner(s): ["module: pt2-dispatcher"]
"""[Inductor][CPU] add, exp: output 0: strides [3, 1] are in another order than eager's [1, 2]

The method below is for test/test_decomp.py, class DecompOneOffTests.
Releases: fails in 2.13.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        sums = x + 1.0
        out = sums.exp()
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)).transpose(-1, -2).contiguous().transpose(-1, -2),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_regression(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs()).stride()
        module = Module().eval()
        expected = module(*inputs()).stride()
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
