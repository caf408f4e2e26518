# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CUDA: RuntimeError, query is not correctly aligned, for padded rows (efficient backend)

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0: runtime error; 2.15.0: runtime error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

B, H, S, T, D, V = 1, 3, 2, 5, 4, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        kt = k.permute(0, 2, 3, 1)
        scores = torch.matmul(q_t, kt)
        scores2 = scores / 8
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        scores3 = torch.where(le, scores2, torch.finfo(scores2.dtype).min)
        scores4 = scores3.contiguous()
        log_softmax = F.log_softmax(scores4, dim=-1)
        exp = log_softmax.exp()
        scaled = exp * 1
        dropout = F.dropout(scaled, 0.0, self.training)
        clone = transposed2.clone()
        product = dropout.matmul(clone)
        return product, transposed


def inputs():
    return [
        F.pad(torch.randn((B, B, S, D * H), generator=rng(0)), (0, 3))[..., :-3],
        torch.randn((B, T, H, D), generator=rng(1)),
        torch.randn((B, T, H, V), generator=rng(2)),
    ]


class WithKernel(Module):
    @sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        product = nn.functional.scaled_dot_product_attention(q_t, transposed, transposed2, scale=0.125, attn_mask=le[None, None])
        return product, transposed


DEVICE = "cuda"


def move(value, exact=None):  # in place and with its strides: a tensor that two calls get stays one tensor
    if exact or DEVICE != "cpu":
        flat = value.data.as_strided([value.untyped_storage().nbytes() // value.element_size()], [1], 0).to(DEVICE)
        flat = flat.double() if exact and flat.is_floating_point() else flat
        value.data = flat.as_strided(value.shape, value.stride(), value.storage_offset())
    return value


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_efficient_alignment(self):
        module = WithKernel().eval().cuda()
        module(*[move(x) for x in inputs()])


if __name__ == "__main__":
    run_tests()
