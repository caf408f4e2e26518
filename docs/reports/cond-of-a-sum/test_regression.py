# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] torch.cond in training: compiling raises AssertionError, expected b_val == 1, where a branch's gradient is expanded, as that of a sum, and the other's is not

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0, 2.13.0: compile error; 2.15.0: compile error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

S, D = 4, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            out = x.sum(dim=-1)
            return out

        def otherwise(*given):
            return -block(*given)

        out = torch.cond((x == x).any(), block, otherwise, (x,))
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_cond_of_a_sum(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        torch._dynamo.reset()
        module = Module()
        compiled = torch.compile(module, dynamic=dynamic)
        run(compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
