# Owner(s): ["module: inductor"]
"""[Inductor] checkpointed (x + 0) @ y: compiling raises AssertionError, Node was invalid, but is output

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

B, H, S, T, D = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        return checkpoint(self.compute, x, y, use_reentrant=False)

    def compute(self, x, y):
        total = x + 0
        out = total @ y
        return out


def inputs():
    return [
        torch.randn((H, S, D), generator=rng(0)),
        torch.randn((B, H, D, T), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_checkpointed_sum_with_zero(self):
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
