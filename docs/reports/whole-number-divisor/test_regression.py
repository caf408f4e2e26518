# Owner(s): ["module: inductor"]
"""[Inductor] attention scores divided by a whole number, in training: AssertionError, Guard failed on the same frame; IndexError before torch 2.15

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1: compile error; 2.15.0: compile error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, T, D = 2, 2, 3, 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        scaled = scores / 8
        probs = scaled.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_whole_number_divisor(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        torch._dynamo.reset()
        module = Module()
        compiled = torch.compile(module, dynamic=dynamic)
        run(compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
