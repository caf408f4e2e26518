# Owner(s): ["module: inductor"]
"""[Inductor] torch.cat of a transposed tensor with an empty one keeps the transposed strides; eager's result is contiguous

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = x.transpose(1, 2)
        out = torch.cat([transposed, y], dim=-1)
        return out


def inputs():
    return [
        torch.randn((1, S, S, 1), generator=rng(0)),
        torch.randn((1, S, S, 0), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_cat_with_an_empty_part(self, dynamic):
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
