# Owner(s): ["oncall: export"]
"""[export] a tensor that a function makes under two torch.func.jvp is lost: the exported program returns a FakeTensor, or raises INTERNAL ASSERT

The method below is for test/export/test_export.py, class TestExport.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):

            def block2(x):
                sine = x.sin()
                return sine

            _, sine = torch.func.jvp(block2, (x,), (x.cos(),))
            constant = torch.full((), 1.0, dtype=torch.float32, device=x.device)
            out = sine * constant
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


def inputs():
    return [
        torch.randn((T,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_tensor_made_within_two_jvp(self):
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
