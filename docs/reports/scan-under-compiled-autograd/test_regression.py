# Owner(s): ["module: compiled autograd"]
"""[compiled autograd] the backward pass of scan, where AOTAutograd compiles the forward pass: UncapturedHigherOrderOpError

The method below is for test/inductor/test_compiled_autograd.py, class TestCompiledAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
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


class RegressionTest(unittest.TestCase):
    def test_scan_under_compiled_autograd(self):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        run(Module())
        try:
            with torch._dynamo.compiled_autograd._enable(torch.compile):
                run(torch.compile(Module(), dynamic=False))
        except Exception as error:
            raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
