# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] index_select of a channels_last tensor on the CPU keeps channels_last; eager's result is contiguous

The method below is for test/test_decomp.py, class DecompOneOffTests.
Releases: fails in 2.13.0, 2.15.0; right in 2.11.0; a regression: last good 2.11.0, first bad 2.13.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, W, C = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, places):
        channels = x.permute(0, 3, 1, 2)
        out = channels.index_select(-1, places)
        return out


def inputs():
    return [
        torch.randn((B, H, W, C), generator=rng(0)),
        torch.randint(0, 2, (W,), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_index_select_of_channels_last(self, dynamic):
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
