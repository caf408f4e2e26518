# Owner(s): ["oncall: export"]
"""[export] torch.export of torch.func.grad leaves its input unused and returns a FakeTensor, or raises

The method below is for test/export/test_export.py, class TestExport.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, D = 2, 3, 1, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = x.permute(2, 0, 3, 1, 4)
        unbind = transposed.unbind(0)[0]

        def block(y, unbind):
            out = y @ unbind
            return out

        out = torch.func.grad(lambda *given: block(*given).sum())(y, unbind)
        return out


def inputs():
    return [
        torch.randn((B, S, 3, H, D), generator=rng(0)),
        torch.randn((B, H, S, S), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_export_of_a_gradient(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).__class__
            module = Module().eval()
            program = torch.export.export(module, tuple(inputs()), dynamic_shapes=None)
            compiled = program.module()
            actual = compiled(*inputs()).__class__
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
