# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] max_pool1d of a transposed tensor on the CPU, without gradients: other strides than eager's

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
fails in 2.11.0, 2.13.0, 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
import torch.nn.functional as F
from torch import nn

B, T, D = 2, 4, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        transposed = x.transpose(-2, -1)
        out = F.max_pool1d(transposed, 2)
        return out


def inputs():
    return [
        torch.randn((B, T, D), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_max_pool1d_strides(self, dynamic):
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
