# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU with a mask of rank 1 raises IndexError: Dimension out of range; the MATH backend takes it

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: compile error IndexError
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
    def forward(self, q, k, v, mask):
        q_t = q.permute(0, 2, 1, 3)
        k_t = k.permute(0, 2, 1, 3)
        kt = k_t.transpose(-2, -1)
        scores = q_t @ kt
        scores2 = scores + mask
        probs = scores2.softmax(dim=-1)
        v_t = v.permute(0, 2, 1, 3)
        out = probs @ v_t
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, T, H, D), generator=rng(1)),
        torch.randn((B, T, H, V), generator=rng(3)),
        torch.ones((T,), dtype=torch.bool),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_mask_of_rank_1(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
