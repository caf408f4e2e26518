# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] a scan in a scan, in training, whose body casts: compiling raises RuntimeError, trying to backward through prims.convert_element_type

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

torch._dynamo.config.capture_scalar_outputs = True

B, D = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
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


class RegressionTest(unittest.TestCase):
    def test_cast_in_nested_scans(self):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        run(Module())
        try:
            run(torch.compile(Module(), dynamic=False))
        except Exception as error:
            raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
