# Owner(s): ["module: dynamo"]
"""[fake tensors, AOTAutograd] a transform of torch.func in the fake or real kernel of a custom operation, such as the vmap of a generic associative_scan: raises when compiled

The method below is for test/dynamo/test_misc.py, class MiscTests.
2.11.0, 2.13.0: compile error; 2.15.0: compile error TorchRuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

B, H, S, V = 1, 1, 2, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


def block_function(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = associative_sum(y, x, dim=2)
    return out


block = torch.library.custom_op("case_07b75b::block", block_function, mutates_args=())
block.register_fake(block_function)


def associative_sum(x, decay, dim, reverse=False, combine_mode="generic"):
    def combine(left, right):
        return left[0] * right[1] + right[0], left[1] * right[1]

    leaves = x, decay.expand_as(x)
    return associative_scan(combine, leaves, dim, reverse=reverse, combine_mode=combine_mode)[0]


class Module(nn.Module):
    def forward(self, x, y):
        out = block(y, x)
        return out


def inputs():
    return [
        torch.randn((B, H, S, 1, 1), generator=rng(0)),
        torch.randn((B, H, S, 1, V), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_vmap_in_a_custom_operation(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
