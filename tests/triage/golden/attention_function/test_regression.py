"""attention kernel mine.kernels:attend: wrong gradient dq

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, os.getcwd())  # the function is imported from here
import torch
from torch import nn
from mine.kernels import attend

H, S, D = 2, 7, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, w, z):
        kt = w.transpose(-2, -1)
        products = x @ kt
        scores = products * 0.25
        weights = scores.softmax(dim=-1)
        out = weights @ z
        return out


def inputs():
    return [
        torch.randn((1, H, S, D), generator=rng(0)),
        torch.randn((1, H, S, D), generator=rng(1)),
        torch.randn((1, H, S, D), generator=rng(2)),
    ]


class WithKernel(Module):
    def forward(self, x, w, z):
        out = attend(x, w, z, scale=0.25)
        return out


class RegressionTest(unittest.TestCase):
    def test_regression(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        eager = run(Module())
        actual = run(WithKernel())
        exact = run(Module().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, kernel {off(actual)}")
        # atol: half of this bug's error, 0.5
        torch.testing.assert_close(actual.double(), exact, atol=0.25, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
