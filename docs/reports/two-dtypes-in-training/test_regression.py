# Owner(s): ["module: inductor"]
"""[Inductor] attention whose second product is in float16 and the first in float32, in training: RuntimeError, expected scalar type Float but found Half

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0: passes; 2.12.1, 2.13.0, 2.14.1: runtime error; 2.15.0: runtime error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, D = 2, 3, 6, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, query, key, value):
        B = query.size(0)
        D = query.size(3)
        H = query.size(2)
        S = query.size(1)
        q = query.permute(0, 2, 1, 3)
        k = key.permute(0, 2, 1, 3)
        v = value.permute(0, 2, 1, 3)
        kt = k.transpose(-2, -1)
        products = q @ kt
        scores = products / 2.0
        high = scores.to(torch.float32)
        weights = high.softmax(dim=-1)
        low = weights.to(torch.float16)
        v_low = v.to(torch.float16)
        mixed = low @ v_low
        context = mixed.to(torch.float32)
        turned = context.transpose(1, 2)
        out = turned.reshape(B, S, D * H)
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, S, H, D), generator=rng(1)),
        torch.randn((B, S, H, D), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_two_dtypes_in_training(self, dynamic):
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
