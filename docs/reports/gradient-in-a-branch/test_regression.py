# Owner(s): ["module: higher order operators"]
"""torch.func.grad in a branch of torch.cond, or in the body of map or while_loop, gives zeros where an operand needs a gradient

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
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
    def forward(self, x):
        def block(x):

            def block2(x):
                out = x.exp()
                return out

            out = torch.func.grad(lambda *given: block2(*given).sum())(x)
            return out.contiguous()

        def otherwise(*given):
            return -block(*given)

        out = torch.cond((x == x).any(), block, otherwise, (x,))
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
    ]


class Plain(Module):
    def forward(self, x):
        def block(x):

            def block2(x):
                out = x.exp()
                return out

            out = torch.func.grad(lambda *given: block2(*given).sum())(x)
            return out.contiguous()

        out = block(x)
        return out


class RegressionTest(unittest.TestCase):
    def test_gradient_in_a_branch(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return out

        actual = run(Module())
        exact = run(Plain().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
        # atol: half of this bug's error, 4.7
        torch.testing.assert_close(actual.double(), exact, atol=2.3, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
