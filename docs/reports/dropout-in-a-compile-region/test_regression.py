# Owner(s): ["module: higher order operators"]
"""[Dynamo] nested_compile_region with a captured float (p of nn.Dropout), dynamic=True: AssertionError

The method below is for test/higher_order_ops/test_invoke_subgraph.py, class TestInvokeSubgraphCompile.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S, T, V = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, y):
        def block(x, y):
            dropout = self.dropout(x)
            out = dropout @ y
            return out

        out = torch.compiler.nested_compile_region(block)(x, y)
        return out


def inputs():
    return [
        torch.randn((S, T), generator=rng(0)),
        torch.randn((T, V), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_dropout_in_a_compile_region(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=True)(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
