# Owner(s): ["module: inductor"]
"""[Inductor] attention with masked_fill(mask == 0): keys whose mask is neither 0 nor 1 are hidden too: wrong result

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, T, D, V = 2, 3, 4, 5, 6, 7


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, x):
        B = q.size(0)
        T = k.size(1)
        q_t = q.permute(0, 2, 1, 3)
        k_t = k.transpose(1, 2)
        v_t = v.transpose(-2, 1)
        kt = k_t.transpose(-2, -1)
        scores = q_t @ kt
        scores2 = scores / 2.0
        drop = x == 0
        viewed = drop.view(B, 1, 1, T)
        scores3 = viewed.expand_as(scores2)
        scores4 = scores2.masked_fill(scores3, float("-inf"))
        probs = scores4.softmax(dim=-1)
        out = probs @ v_t
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, T, H, D), generator=rng(3)),
        torch.randn((B, T, H, V), generator=rng(1)),
        torch.randn((B, T), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_integer_mask(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Module().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 10 times eager's error against float64, 2.7e-07,
        # and 8 units in the last place of the largest value, 2.8 in float32
        self.assertEqual(actual.double(), expected, atol=5.4e-06, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
