# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CUDA reads a misaligned address where the rows of the query, key or value are padded (flash backend)

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0, 2.15.0: device error
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

B, S, T, D, V = 1, 2, 2, 16, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, v, k4, q3):
        v2 = v.permute(1, 0, 2)
        v3 = v2.unsqueeze(1)
        kt = k4.transpose(-2, -1)
        scores = q3 @ kt
        scores2 = scores / 4.0
        keep = torch.ones((S, T), dtype=torch.bool, device=v.device)
        keep2 = keep.tril()
        low = torch.full((), float("-inf"), dtype=torch.bfloat16, device=v.device)
        scores3 = torch.where(keep2, scores2, low)
        probs = F.softmax(scores3, dim=-1)
        out = torch.matmul(probs, v3)
        return out


def inputs():
    return [
        F.pad(torch.full((T, B, V), 0.02).to(torch.bfloat16), (0, 3))[..., :-3],
        torch.randn((B, 1, T, D), generator=rng(3)).to(torch.bfloat16),
        torch.randn((B, 1, S, D), generator=rng(3)).to(torch.bfloat16),
    ]


class WithKernel(Module):
    @sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    def forward(self, v, k4, q3):
        v2 = v.permute(1, 0, 2)
        v3 = v2.unsqueeze(1)
        out = nn.functional.scaled_dot_product_attention(q3, k4, v3, scale=0.25, is_causal=True)
        return out


DEVICE = "cuda"


def move(value, exact=None):  # in place and with its strides: a tensor that two calls get stays one tensor
    if exact or DEVICE != "cpu":
        flat = value.data.as_strided([value.untyped_storage().nbytes() // value.element_size()], [1], 0).to(DEVICE)
        flat = flat.double() if exact and flat.is_floating_point() else flat
        value.data = flat.as_strided(value.shape, value.stride(), value.storage_offset())
    return value


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_flash_misaligned_value(self):
        module = WithKernel().eval().cuda()
        module(*[move(x) for x in inputs()])


if __name__ == "__main__":
    run_tests()
