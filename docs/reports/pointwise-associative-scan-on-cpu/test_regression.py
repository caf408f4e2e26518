# Owner(s): ["module: inductor"]
"""[Inductor] associative_scan, combine_mode pointwise, on the CPU: LoweringException, no fallback as documented

The method below is for test/inductor/test_control_flow.py, class AssociativeScanTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

S = 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


def associative_sum(x, decay, dim, reverse=False, combine_mode="generic"):
    def combine(left, right):
        return left[0] * right[1] + right[0], left[1] * right[1]

    leaves = x, decay.expand_as(x)
    return associative_scan(combine, leaves, dim, reverse=reverse, combine_mode=combine_mode)[0]


class Module(nn.Module):
    def forward(self, x, decay):
        out = associative_sum(x, decay, dim=0, combine_mode="pointwise")
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
        torch.randn((S,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_pointwise_associative_scan_on_cpu(self):
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
