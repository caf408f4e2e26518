# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] a custom operation under autocast computes without it when compiled: float32 where eager, and the operation's fake kernel, give bfloat16

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


def block_function(x: torch.Tensor) -> torch.Tensor:
    out = x @ x
    return out


block = torch.library.custom_op("case_3ec360::block", block_function, mutates_args=())
block.register_fake(block_function)


class Module(nn.Module):
    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = block(x)
        return out


def inputs():
    return [
        torch.randn((S, S), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_custom_operation_without_autocast(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).dtype
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).dtype
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
