# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] masked_fill_ or lerp_ on a transposed view of a viewed input: compiling raises ValueError, cannot view a tensor

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.12.1, 2.13.0, 2.14.1: compile error; 2.15.0: compile error ValueError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

H = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask):
        H = x.size(0)
        viewed = x.view(1, H, H, H)
        transposed = viewed.transpose(-2, -1)
        transposed.masked_fill_(mask, 0.0)
        return transposed


def inputs():
    return [
        torch.randn((H, H * H), generator=rng(0)),
        torch.ones((H,), dtype=torch.bool),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_masked_fill_of_a_view(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
