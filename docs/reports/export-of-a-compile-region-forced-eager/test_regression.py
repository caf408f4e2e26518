# Owner(s): ["oncall: export"]
"""[export] torch.export of a nested_compile_region under set_stance('force_eager'): RecursionError

The method below is for test/export/test_export.py, class TestExport.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import functools
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            out = x.sum(dim=-1)
            return out

        out = torch.compiler.nested_compile_region(block)(x)
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
    ]


def calls(module):
    with torch.compiler.set_stance("force_eager"):
        yield inputs()


class RegressionTest(unittest.TestCase):
    def test_export_of_a_compile_region_forced_eager(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    out = call(*given)

            module = Module().eval()
            run(module, module)
            try:
                module = Module().eval()

                @functools.cache
                def export():
                    program = torch.export.export(module, tuple(inputs()), dynamic_shapes=None)
                    return program.module()

                compiled = lambda *given: export()(*given)
                run(module, compiled)
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
