# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] torch.vmap of a scan over rows with axes of size 1: compiling raises, init and carry have other strides

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.11.0: runtime error; 2.13.0: compile error; 2.15.0: compile error UncapturedHigherOrderOpError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

torch._dynamo.config.capture_scalar_outputs = True

B, H, S, D = 2, 2, 1, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


def scan_sum(x, decay, dim, reverse=False):
    def step(state, rows):
        state = state * rows[1] + rows[0]
        return state, state.clone()

    x, decay = x.movedim(dim, 0), decay.movedim(dim, 0)
    start = torch.zeros_like(x[0], memory_format=torch.contiguous_format)
    return scan(step, start, (x, decay), reverse=reverse)[1].movedim(0, dim)


class Module(nn.Module):
    def forward(self, x, y):
        B = x.size(0)

        def block(x, y):
            x, y = x[None], y[None]
            out = scan_sum(x, y, dim=1)
            return out[0]

        out = torch.vmap(block)(x, y)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_vmap_of_a_scan(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
