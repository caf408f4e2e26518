# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] a scan in a scan, in training, whose body casts: compiling raises RuntimeError, trying to backward through prims.convert_element_type

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
2.13.0: compile error; 2.15.0: compile error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

torch._dynamo.config.capture_scalar_outputs = True

B, D = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        B = x.size(0)

        def block(x):
            x = x[None]

            def block2(x):
                x = x[None]
                wide = x.to(torch.float32)
                out = -wide
                return out[0]

            _, out = scan(lambda count, rows: (count + 1, block2(*rows)), torch.zeros((), device=x.device), (x,))
            return out[0]

        _, out = scan(lambda count, rows: (count + 1, block(*rows)), torch.zeros((), device=x.device), (x,))
        return out


def inputs():
    return [
        torch.randn((B, D), generator=rng(0)).to(torch.float16),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_cast_in_nested_scans(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
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
