# Owner(s): ["module: higher order operators"]
"""torch.associative_scan, combine_mode pointwise: wrong gradients where combine_fn mixes leaves, as in a sum with decay

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
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


class RegressionTest(unittest.TestCase):
    def test_associative_scan_gradient(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[1].grad

        actual = run(Module())
        exact = run(Plain().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
        # atol: half of this bug's error, 0.56
        torch.testing.assert_close(actual.double(), exact, atol=0.28, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
