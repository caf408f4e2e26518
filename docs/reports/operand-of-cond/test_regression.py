# Owner(s): ["module: inductor"]
"""[Inductor] torch.cond whose operand is a fused permuted product: running raises AssertionError, expected size 2==2, stride 1==2

The method below is for test/inductor/test_control_flow.py, class CondTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, T, D = 1, 2, 1, 2, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y, z):
        transposed = x.permute(0, 2, 3, 1)
        product = z @ transposed
        scaled = product / 2.0

        def block(scaled, y):
            out = scaled + y
            return out

        def otherwise(*given):
            return -block(*given)

        out = torch.cond((scaled == scaled).any(), block, otherwise, (scaled, y))
        return out


def inputs():
    return [
        torch.randn((B, T, H, D), generator=rng(0)),
        torch.randn((T,), generator=rng(1)),
        torch.randn((S, D), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_operand_of_cond(self):
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
