# Owner(s): ["module: higher order operators"]
"""[Dynamo] torch.cond, scan or map in a checkpointed function, grad mode on: compiling raises NotImplementedError, no rule for the checkpoint's dispatch mode

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
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


class RegressionTest(unittest.TestCase):
    def test_map_in_a_checkpoint(self):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
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
