# Owner(s): ["module: dynamo"]
"""[Dynamo] mark_unbacked of a leaf that has a gradient: compiling raises GuardOnDataDependentSymNode

The method below is for test/dynamo/test_misc.py, class MiscTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, T = 2, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.exp()
        return out


def inputs():
    return [
        torch.randn((B, T), generator=rng(0)),
    ]


def calls(module):
    first = inputs()
    yield first
    torch._dynamo.decorators.mark_unbacked(first[0], 0)
    yield first


class RegressionTest(unittest.TestCase):
    def test_unbacked_axis_of_a_leaf_with_gradient(self):
        def run(module, call):
            for given in calls(module):
                given[0].requires_grad_(torch.is_grad_enabled())
                out = call(*given)
                torch.manual_seed(1)
                outs = [o for o in [out] if o.requires_grad]
                if outs:
                    sum((o * torch.randn(o.shape).to(o)).sum() for o in outs).backward()

        module = Module()
        run(module, module)
        try:
            module = Module()
            compiled = torch.compile(module, dynamic=False)
            run(module, compiled)
        except Exception as error:
            raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
