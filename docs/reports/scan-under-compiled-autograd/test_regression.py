# Owner(s): ["module: compiled autograd"]
"""[compiled autograd] the backward pass of scan, where AOTAutograd compiles the forward pass: UncapturedHigherOrderOpError

The method below is for test/inductor/test_compiled_autograd.py, class TestCompiledAutograd.
2.13.0, 2.15.0: compile error UncapturedHigherOrderOpError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan

torch._dynamo.config.capture_scalar_outputs = True

B, S, D = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        B = x.size(0)

        def block(x):
            x = x[None]
            out = F.linear(x, y)
            return out[0]

        _, out = scan(lambda count, rows: (count + 1, block(*rows)), torch.zeros((), device=x.device), (x,))
        return out


def inputs():
    return [
        torch.randn((B, S, D), generator=rng(0)),
        torch.randn((D, D), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_scan_under_compiled_autograd(self, dynamic):
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
        with torch._dynamo.compiled_autograd._enable(torch.compile):
            run(compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
