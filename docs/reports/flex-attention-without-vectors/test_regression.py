# Owner(s): ["module: flex attention"]
"""[Inductor] flex_attention on the CPU without vector instructions (cpp.simdlen=1): compiling raises AssertionError, trans_b requires AVX512 or AVX2

The method below is for test/inductor/test_flex_attention.py, class TestFlexAttention.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: compile error LoweringException
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

B, H, S, T, D, V = 2, 3, 4, 5, 6, 7


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = flex_attention(q, k, v)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, V), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_flex_attention_without_vectors(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic, options={'cpp.simdlen': 1})
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
