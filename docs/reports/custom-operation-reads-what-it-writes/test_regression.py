# Owner(s): ["module: inductor"]
"""[Inductor] a custom operation that writes into a clone and reads the original: the clone is dropped, and the operation reads what it has written: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
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


def block_function(clone: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    clone.add_(1.0)
    out = -sine
    return out


block = torch.library.custom_op("case_5953b7::block", block_function, mutates_args=('clone',))
block.register_fake(block_function)


class Module(nn.Module):
    def forward(self, x):
        sine = x.sin()
        clone = sine.clone()
        out = block(clone, sine)
        return out, clone


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
    ]


class Plain(Module):
    def forward(self, x):
        sine = x.sin()
        clone = sine.clone()
        out = block_function(clone, sine)
        return out, clone


class RegressionTest(unittest.TestCase):
    def test_custom_operation_reads_what_it_writes(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())[0]
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())[0]
            exact = Plain().eval().double()(*[x.double() for x in inputs()])[0]
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 1
            torch.testing.assert_close(actual.double(), exact, atol=0.5, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
