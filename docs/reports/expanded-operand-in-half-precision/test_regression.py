# Owner(s): ["module: inductor"]
"""[Inductor] an elementwise operation in bfloat16 or float16 with an expanded, transposed operand: other strides than eager's

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, T, D, V, L = 2, 3, 4, 1, 1, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = x.transpose(-4, -1)
        expand = transposed.expand(-1, H, -1, -1)
        out = y > expand
        return out


def inputs():
    return [
        torch.randn((T, 1, B, D), generator=rng(0)).to(torch.bfloat16),
        torch.randn((L, 1, B, V), generator=rng(1)).to(torch.bfloat16),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_expanded_operand_in_half_precision(self, dynamic):
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
