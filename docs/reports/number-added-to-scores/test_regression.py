# Owner(s): ["module: inductor"]
"""[Inductor] attention by torch.bmm with a number added to the scores: compiling raises AttributeError, 'float' object has no attribute 'to'

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0, 2.13.0, 2.15.0: compile error AttributeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, D = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        B = q.size(0)
        D = q.size(3)
        H = q.size(1)
        S = q.size(2)
        q2 = q.view(B * H, S, D)
        k2 = k.reshape(B * H, S, D)
        kt = k2.transpose(-2, -1)
        products = torch.bmm(q2, kt)
        scores = products.view(B, H, S, S)
        scores2 = scores + 0.5
        scores3 = scores2.view(B * H, S, S)
        probs = scores3.softmax(dim=-1)
        v2 = v.reshape(B * H, S, D)
        product = torch.bmm(probs, v2)
        out = product.view(B, H, S, D)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((B, H, S, D), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_number_added_to_scores(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
