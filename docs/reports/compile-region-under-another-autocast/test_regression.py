# Owner(s): ["module: higher order operators"]
"""[AOTAutograd] a nested_compile_region called once without and once under autocast: the second call ignores autocast, float32 where eager gives bfloat16

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S, D, L = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    @torch.compiler.nested_compile_region
    def forward(self, x, y):
        product = x @ y
        return product


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(0)
        self.block2 = Block(1)

    def forward(self, x, y):
        product = self.block(x, y)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            product2 = self.block2(x, y)
        return product, product2


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
        torch.randn((D, L), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_compile_region_under_another_autocast(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())[1].dtype
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())[1].dtype
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
