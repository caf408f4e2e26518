# Owner(s): ["module: inductor"]
"""[Inductor] amax or amin of a half-precision result in training: the gradient is NaN

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        total = x + y
        out = total.amax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)).to(torch.float16),
        torch.randn((S,), generator=rng(1)).to(torch.float16),
    ]


class RegressionTest(unittest.TestCase):
    def test_amax_of_a_sum_in_training(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        eager = run(Module())
        actual = run(torch.compile(Module(), dynamic=False))
        exact = run(Module().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
        assert actual[exact.isfinite()].isfinite().all()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
