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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


class RegressionTest(TestCase):
    def test_mask_of_rank_1(self):

        q = torch.randn(2, 3, 4, 8)
        mask = torch.zeros(4)  # broadcastable to the weights, as the documentation asks
        with sdpa_kernel(SDPBackend.MATH):
            expected = scaled_dot_product_attention(q, q, q, attn_mask=mask)
        actual = scaled_dot_product_attention(q, q, q, attn_mask=mask)
        torch.testing.assert_close(actual, expected)


if __name__ == "__main__":
    run_tests()
