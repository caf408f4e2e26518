# Owner(s): ["module: inductor"]
"""[Inductor] a number to the power of a transposed tensor has the tensor's strides; eager's result is contiguous

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, T, D = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        transposed = x.transpose(-2, 1)
        out = 3.0 ** transposed
        return out


def inputs():
    return [
        torch.randn((B, T, H, D), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_power_of_a_number(self, dynamic):
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
