# Owner(s): ["module: higher order operators"]
"""torch.while_loop gives wrong gradients where a carried value needs none at the start, in eager and compiled

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0, 2.13.0, 2.15.0: wrong in eager
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, T, V = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        def block(y):
            y = y[None]
            out = x @ y
            return out[0]

        def step(row, out):
            at = row.reshape(1)
            return row + 1, out.index_copy(0, at, block(y.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, H, S, V), dtype=torch.float32, device=y.device)
        _, out = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=y.device), zeros))
        return out


def inputs():
    return [
        torch.randn((S, T), generator=rng(0)),
        torch.randn((B, H, T, V), generator=rng(1)),
    ]


class Plain(Module):
    def forward(self, x, y):
        def block(y):
            y = y[None]
            out = x @ y
            return out[0]

        out = torch.stack([block(*rows) for rows in zip(y)])
        return out


class RegressionTest(TestCase):
    def test_while_loop_gradient(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[1].grad

        module = Module()
        actual = run(module)
        exact = Plain().double()
        expected = run(exact, double=True)
        # atol: 0.05% of the largest value, 6.6
        self.assertEqual(actual.double(), expected, atol=3.3e-03, rtol=0)


if __name__ == "__main__":
    run_tests()
