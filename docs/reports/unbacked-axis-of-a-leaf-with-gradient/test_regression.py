# Owner(s): ["module: dynamo"]
"""[Dynamo] mark_unbacked of a leaf that has a gradient: compiling raises GuardOnDataDependentSymNode

The method below is for test/dynamo/test_misc.py, class MiscTests.
2.11.0: passes; 2.13.0: compile error; 2.15.0: compile error GuardOnDataDependentSymNode
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, T = 2, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.exp()
        return out


def inputs():
    return [
        torch.randn((B, T), generator=rng(0)),
    ]


def calls(module):
    first = inputs()
    yield first
    torch._dynamo.decorators.mark_unbacked(first[0], 0)
    yield first


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_unbacked_axis_of_a_leaf_with_gradient(self, dynamic):
        def run(module, call):
            for given in calls(module):
                given[0].requires_grad_(torch.is_grad_enabled())
                out = call(*given)
                torch.manual_seed(1)
                outs = [o for o in [out] if o.requires_grad]
                if outs:
                    sum((o * torch.randn(o.shape).to(o)).sum() for o in outs).backward()

        torch._dynamo.reset()
        module = Module()
        compiled = torch.compile(module, dynamic=dynamic)
        run(module, compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
