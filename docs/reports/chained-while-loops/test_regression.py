# Owner(s): ["module: higher order operators"]
"""[Dynamo] a torch.while_loop that reads the result of another, in training: compiling raises AssertionError, Source is None

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0, 2.13.0: compile error; 2.15.0: compile error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, T, D = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y, z):
        B = y.size(0)

        def block(y):
            y = y[None]
            scaled = y / z
            return scaled[0]

        def step(row, scaled):
            at = row.reshape(1)
            return row + 1, scaled.index_copy(0, at, block(y.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, H, S, D), dtype=torch.float32, device=y.device)
        _, scaled = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=y.device), zeros))

        def block2(scaled):
            scaled = scaled[None]
            out = scaled @ x
            return out[0]

        def step(row, out):
            at = row.reshape(1)
            return row + 1, out.index_copy(0, at, block2(scaled.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, H, S, T), dtype=torch.float32, device=scaled.device)
        _, out = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=scaled.device), zeros))
        return out


def inputs():
    return [
        torch.randn((D, T), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_chained_while_loops(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
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
