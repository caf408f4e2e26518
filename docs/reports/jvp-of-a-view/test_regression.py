# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] torch.func.jvp of a function that takes a view of its argument, itself a view of a larger tensor: INTERNAL ASSERT FAILED, has_fw_view

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.13.0: compile error; 2.15.0: compile error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
import torch.nn.functional as F
from torch import nn

H, V = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            out = x.repeat_interleave(H, 0)
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


def inputs():
    return [
        F.pad(torch.randn((V,), generator=rng(0)), (1, 0))[1:],
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_jvp_of_a_view(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
