# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] torch.vmap of a scan over rows with axes of size 1: compiling raises, init and carry have other strides

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


class RegressionTest(unittest.TestCase):
    def test_vmap_of_a_scan(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=False)(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
