# Owner(s): ["module: higher order operators"]
"""[Dynamo] torch.cond, scan or map in a checkpointed function, grad mode on: compiling raises NotImplementedError, no rule for the checkpoint's dispatch mode

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0: passes; 2.13.0: compile error; 2.15.0: compile error NotImplementedError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch._higher_order_ops.map import map as map_rows

torch._dynamo.config.capture_scalar_outputs = True

B, H, S, T = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        B = y.size(0)

        def block(x, y):

            def block2(y):
                y = y[None]
                out = x - y
                return out[0]

            out = map_rows(lambda rows: block2(*rows), (y,))
            return out

        out = checkpoint(block, x, y, use_reentrant=False)
        return out


def inputs():
    return [
        torch.randn((T,), generator=rng(0)),
        torch.randn((B, H, S, 1), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_map_in_a_checkpoint(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
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
