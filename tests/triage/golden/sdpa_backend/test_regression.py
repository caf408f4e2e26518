# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention, FLASH_ATTENTION backend: NaN or infinity

The method below is for test/test_transformers.py, class TestSDPA.
Releases: fails in 2.13.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
from torch import nn

H, S, D = 2, 7, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, w, z):
        kt = w.transpose(-2, -1)
        products = x @ kt
        scores = products * 0.25
        weights = scores.softmax(dim=-1)
        out = weights @ z
        return out


def inputs():
    return [
        torch.randn((1, H, S, D), generator=rng(0)),
        torch.randn((1, H, S, D), generator=rng(1)),
        torch.randn((1, H, S, D), generator=rng(2)),
    ]


class WithKernel(Module):
    @sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    def forward(self, x, w, z):
        out = nn.functional.scaled_dot_product_attention(x, w, z, scale=0.25)
        return out


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_regression(self):
        module = WithKernel().eval()
        self.assertTrue(module(*inputs()).isfinite().all())


if __name__ == "__main__":
    run_tests()
