# Owner(s): ["module: inductor"]
"""[Inductor] a constant whose size is marked unbacked, as in the gradient of a gradient: compiling raises GuardOnDataDependentSymNode

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, S, T, D = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, mask, y):
        product = x @ y

        def block(product):
            out = product + mask
            return out

        slope = torch.func.grad(lambda *given: block(*given).square().sum())
        out = torch.func.grad(lambda *given: slope(*given).square().sum())(product)
        return out


def inputs():
    return [
        torch.randn((B, S, D), generator=rng(0)),
        torch.ones((T,), dtype=torch.bool),
        torch.randn((D, T), generator=rng(2)),
    ]


def calls(module):
    given = inputs()
    torch._dynamo.decorators.mark_unbacked(given[0], 1)
    yield given


class RegressionTest(unittest.TestCase):
    def test_constant_of_unbacked_size(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    out = call(*given)

            module = Module().eval()
            run(module, module)
            try:
                module = Module().eval()
                compiled = torch.compile(module, dynamic=False)
                run(module, compiled)
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
