# Owner(s): ["module: higher order operators"]
"""[Dynamo] nested_compile_region with a captured float (p of nn.Dropout), dynamic=True: AssertionError

The method below is for test/higher_order_ops/test_invoke_subgraph.py, class TestInvokeSubgraphCompile.
2.11.0, 2.13.0: passes; 2.15.0: compile error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

S, T, V = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, y):
        def block(x, y):
            dropout = self.dropout(x)
            out = dropout @ y
            return out

        out = torch.compiler.nested_compile_region(block)(x, y)
        return out


def inputs():
    return [
        torch.randn((S, T), generator=rng(0)),
        torch.randn((T, V), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_dropout_in_a_compile_region(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
