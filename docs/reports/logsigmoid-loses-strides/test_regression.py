# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] logsigmoid on CPU keeps the strides of a transposed tensor; eager's result is contiguous, and as_strided reads other values

The method below is for test/test_decomp.py, class DecompOneOffTests.
2.11.0, 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
import torch.nn.functional as F
from torch import nn

B, H, T = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = F.logsigmoid(x)
        return out


def inputs():
    return [
        torch.randn((B, T, H), generator=rng(0)).transpose(-2, -3).contiguous().transpose(-2, -3),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_logsigmoid_loses_strides(self, dynamic):
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
