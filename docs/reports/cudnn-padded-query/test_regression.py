# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CUDA: wrong result where the row stride of a half-precision query, key or value is no multiple of 8 (cuDNN backend, the default choice on an H100)

The method below is for test/test_transformers.py, class TestSDPA.
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

B, S, T, D, V = 3, 4, 2, 8, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v)
        return out


def inputs():
    return [
        F.pad(torch.randn((B, S, D), generator=rng(0)).to(torch.bfloat16), (0, 3))[..., :-3],
        torch.randn((B, T, D), generator=rng(1)).to(torch.bfloat16),
        torch.randn((B, T, V), generator=rng(2)).to(torch.bfloat16),
    ]


DEVICE = "cuda"


def move(value, exact=None):  # in place and with its strides: a tensor that two calls get stays one tensor
    if exact or DEVICE != "cpu":
        flat = value.data.as_strided([value.untyped_storage().nbytes() // value.element_size()], [1], 0).to(DEVICE)
        flat = flat.double() if exact and flat.is_floating_point() else flat
        value.data = flat.as_strided(value.shape, value.stride(), value.storage_offset())
    return value


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_cudnn_padded_query(self):
        module = Module().eval().cuda()
        actual = module(*[move(x) for x in inputs()])
        exact = Module().eval().cuda().double()
        with sdpa_kernel(SDPBackend.MATH):
            expected = exact(*[move(x, True) for x in inputs()])
        # atol: 5.00% of the largest value, 1.8
        self.assertEqual(actual.double(), expected, atol=8.9e-02, rtol=0)


if __name__ == "__main__":
    run_tests()
