# Owner(s): ["module: higher order operators"]
"""torch.associative_scan, combine_mode pointwise: wrong gradients where combine_fn mixes leaves, as in a sum with decay

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
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


def decayed_sum(x, decay, dim, reverse=False):
    """state[t] = decay[t] * state[t - 1] + x[t] along `dim`, from its end if reversed."""
    pairs = [*zip(x.unbind(dim), decay.expand_as(x).unbind(dim))]
    state, states = torch.zeros_like(pairs[0][0]), []
    for row, factor in reversed(pairs) if reverse else pairs:
        state = factor * state + row
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim)


class Plain(Module):
    def forward(self, x, decay):
        out = decayed_sum(x, decay, dim=0)
        return out


class RegressionTest(TestCase):
    def test_associative_scan_gradient(self):
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
        # atol: 0.05% of the largest value, 0.56
        self.assertEqual(actual.double(), expected, atol=2.8e-04, rtol=0)


if __name__ == "__main__":
    run_tests()
