# Owner(s): ["module: inductor"]
"""[Inductor] attention by torch.bmm whose value is a reshaped 1-d input: compiling raises RuntimeError, expected 2 dimensions or more

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: compile error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

D = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, mask):
        D = q.size(3)
        k2 = k.reshape(1, D, D)
        kt = k2.transpose(-2, -1)
        q2 = q.view(1, 1, D)
        scores = torch.bmm(q2, kt)
        scores2 = scores.reshape(1, 1, 1, D)
        scores3 = scores2 + mask
        scores4 = scores3.reshape(1, 1, D)
        probs = scores4.softmax(dim=-1)
        v2 = v.reshape(1, D, D)
        product = torch.bmm(probs, v2)
        out = product.reshape(1, 1, 1, D)
        return out


def inputs():
    return [
        torch.randn((1, 1, 1, D), generator=rng(0)),
        torch.randn((1, 1, D, D), generator=rng(1)),
        torch.randn((D * D,), generator=rng(3)),
        torch.ones((D,), dtype=torch.bool),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_value_of_other_shape(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
