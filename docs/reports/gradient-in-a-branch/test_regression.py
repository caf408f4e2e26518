# Owner(s): ["module: higher order operators"]
"""torch.func.grad in a branch of torch.cond, or in the body of map, gives zeros where an operand needs a gradient

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0, 2.13.0, 2.15.0: wrong in eager
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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
            return out

        out = block(x)
        return out


class RegressionTest(TestCase):
    def test_gradient_in_a_branch(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return out

        module = Module()
        actual = run(module)
        exact = Plain().double()
        expected = run(exact, double=True)
        # atol: 0.05% of the largest value, 4.7
        self.assertEqual(actual.double(), expected, atol=2.3e-03, rtol=0)


if __name__ == "__main__":
    run_tests()
