# Owner(s): ["module: inductor"]
"""[Inductor] associative_scan, combine_mode pointwise, on the CPU: LoweringException, no fallback as documented

The method below is for test/inductor/test_control_flow.py, class AssociativeScanTests.
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

S = 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


def associative_sum(x, decay, dim, reverse=False, combine_mode="generic"):
    def combine(left, right):
        return left[0] * right[1] + right[0], left[1] * right[1]

    leaves = x, decay.expand_as(x)
    return associative_scan(combine, leaves, dim, reverse=reverse, combine_mode=combine_mode)[0]


class Module(nn.Module):
    def forward(self, x, decay):
        out = associative_sum(x, decay, dim=0, combine_mode="pointwise")
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
        torch.randn((S,), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_pointwise_associative_scan_on_cpu(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
