# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] under no_grad a view of a parameter that is written to and returned: compiling raises RuntimeError, a view was created in no_grad mode

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.12.1, 2.13.0, 2.14.1: compile error; 2.15.0: compile error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((1,), generator=rng(0)))

    def forward(self, x):
        unsqueeze = self.weight.unsqueeze(0)
        unsqueeze.copy_(x)
        return unsqueeze


def inputs():
    return [
        torch.randn((1,), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_view_of_parameter_written_without_gradients(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
