# Owner(s): ["module: inductor"]
"""[Inductor] checkpointed (x + 0) @ y: compiling raises AssertionError, Node was invalid, but is output

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0: passes; 2.15.0: compile error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

B, H, S, T, D = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        return checkpoint(self.compute, x, y, use_reentrant=False)

    def compute(self, x, y):
        total = x + 0
        out = total @ y
        return out


def inputs():
    return [
        torch.randn((H, S, D), generator=rng(0)),
        torch.randn((B, H, D, T), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_checkpointed_sum_with_zero(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
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
