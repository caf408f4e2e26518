# Owner(s): ["module: higher order operators"]
"""[Dynamo] a torch.while_loop that reads the result of another, in training: compiling raises AssertionError, Source is None

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, T, D = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y, z):
        def block(y):
            y = y[None]
            scaled = y / z
            return scaled[0]

        def step(row, scaled):
            at = row.reshape(1)
            return row + 1, scaled.index_copy(0, at, block(y.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, H, S, D), dtype=torch.float32, device=y.device)
        _, scaled = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=y.device), zeros))

        def block2(scaled):
            scaled = scaled[None]
            out = scaled @ x
            return out[0]

        def step(row, out):
            at = row.reshape(1)
            return row + 1, out.index_copy(0, at, block2(scaled.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, H, S, T), dtype=torch.float32, device=scaled.device)
        _, out = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=scaled.device), zeros))
        return out


def inputs():
    return [
        torch.randn((D, T), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_chained_while_loops(self):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
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
