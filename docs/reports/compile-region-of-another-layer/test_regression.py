# Owner(s): ["module: higher order operators"]
"""[Dynamo] a nested_compile_region uses the body of its first call for layers with another number or flag: one that calls another region, and closures of one function: wrong result

The method below is for test/higher_order_ops/test_invoke_subgraph.py, class TestInvokeSubgraphCompile.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    @torch.compiler.nested_compile_region
    def forward(self, x):
        if self.number == 0:
            scaled = x * 2.0
        else:
            scaled = x * 1.0
        return scaled


class BlockAround(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layer = Block(number)

    @torch.compiler.nested_compile_region
    def forward(self, x):
        return self.layer(x)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = BlockAround(0)
        self.block2 = BlockAround(1)

    def forward(self, x):
        scaled = self.block(x)
        out = self.block2(scaled)
        return out


def inputs():
    return [
        torch.randn((D,), generator=rng(0)),
    ]


class Plain(Module):
    def forward(self, x):
        scaled = self.block(x)
        out = self.block2(scaled)
        return out


class RegressionTest(unittest.TestCase):
    def test_compile_region_of_another_layer(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            exact = Plain().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 3.1
            torch.testing.assert_close(actual.double(), exact, atol=1.5, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
