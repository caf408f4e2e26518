# Owner(s): ["module: inductor"]
"""[Inductor] a constant whose size is marked unbacked, as in the gradient of a gradient: compiling raises GuardOnDataDependentSymNode

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0: compile error; 2.15.0: compile error GuardOnDataDependentSymNode
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, S, T, D = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask, y):
        product = x @ y

        def block(product):
            out = product + mask
            return out

        slope = torch.func.grad(lambda *given: block(*given).square().sum())
        out = torch.func.grad(lambda *given: slope(*given).square().sum())(product)
        return out


def inputs():
    return [
        torch.randn((B, S, D), generator=rng(0)),
        torch.ones((T,), dtype=torch.bool),
        torch.randn((D, T), generator=rng(2)),
    ]


def calls(module):
    given = inputs()
    torch._dynamo.decorators.mark_unbacked(given[0], 1)
    yield given


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_constant_of_unbacked_size(self, dynamic):
        def run(module, call):
            for given in calls(module):
                out = call(*given)

        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        run(module, compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
