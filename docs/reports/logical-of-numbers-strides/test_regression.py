# Owner(s): ["module: inductor"]
"""[Inductor] torch.logical_and, logical_or or logical_xor of numbers, an operand broadcast, the other permuted: other strides than eager's

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Releases: fails in 2.11.0, 2.13.0, 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, A, C = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = y.permute(2, 0, 1)
        out = torch.logical_and(x, transposed)
        return out


def inputs():
    return [
        torch.randn((B,), generator=rng(0)),
        torch.randn((A, B, C), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_logical_of_numbers_strides(self, dynamic):
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
