# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] an output whose windows overlap (unfold, as_strided), in training: its gradient is wrong, right in 2.11

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, T, V = 1, 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        clone = x.clone()
        out = clone.as_strided((B * H * T * V - 2, 3,), (1, 1,))
        return out


def inputs():
    return [
        torch.randn((T, H, V), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_gradient_of_overlapping_windows(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        eager = run(Module())
        actual = run(torch.compile(Module(), dynamic=False))
        exact = run(Module().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
        # atol: half of this bug's error, 5.8
        torch.testing.assert_close(actual.double(), exact, atol=2.9, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
