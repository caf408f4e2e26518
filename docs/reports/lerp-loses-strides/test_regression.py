# Owner(s): ["module: inductor"]
"""[Inductor] lerp and lerp_ return their result in the strides of the end; eager keeps those of the tensor itself

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0: passes; 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

H, T, D, V = 2, 3, 1, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        clone = y.clone()
        clone.lerp_(x, 0.5)
        return clone


def inputs():
    return [
        torch.randn((H, T, D), generator=rng(0)).transpose(-2, -3).contiguous().transpose(-2, -3),
        torch.randn((H, T, V), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_lerp_loses_strides(self, dynamic):
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
