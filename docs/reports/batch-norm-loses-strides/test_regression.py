# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] batch_norm of a transposed tensor on the CPU keeps the tensor's strides; eager's result is contiguous

The method below is for test/test_decomp.py, class DecompOneOffTests.
2.11.0, 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
import torch.nn.functional as F
from torch import nn

B, S, D = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        transposed = x.transpose(1, 2)
        out = F.batch_norm(transposed, None, None, training=True)
        return out


def inputs():
    return [
        torch.randn((B, S, D), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_batch_norm_loses_strides(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs()).stride()
        module = Module().eval()
        expected = module(*inputs()).stride()
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
