# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] index_copy_, masked_fill_ and the like make a tensor contiguous: other strides, and as_strided reads other values

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask):
        transposed = x.transpose(-2, -1)
        clone = transposed.clone()
        clone.index_copy_(0, mask, transposed)
        return clone


def inputs():
    return [
        torch.randn((T, T), generator=rng(0)),
        torch.randint(0, 2, (T,), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_indexed_write_loses_strides(self, dynamic):
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
