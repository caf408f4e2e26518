# Owner(s): ["module: sdpa"]
"""[CPU] attention (sdpa) in training: eager is off from float64 (aten._scaled_dot_product_flash_attention_for_cpu_backward)

The method below is for test/test_transformers.py, class TestSDPA.
Releases: fails in 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

B, H, S, T, D = 1, 1, 2, 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    without_gradient = ['mask']

    def forward(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
        torch.full((S, T), -3.4028234663852886e+38),
    ]


class RegressionTest(TestCase):
    def test_regression(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        module = Module()
        actual = run(module)
        exact = Module().double()
        with sdpa_kernel(SDPBackend.MATH):
            expected = run(exact, double=True)
        # atol: 0.05% of the largest value, 0.61
        self.assertEqual(actual.double(), expected, atol=3.1e-04, rtol=0)


if __name__ == "__main__":
    run_tests()
