# Owner(s): ["oncall: export"]
"""[export] an exported torch.func.jvp raises TypeError under inference_mode; every later jvp of the process raises too

The method below is for test/export/test_export.py, class TestExport.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import functools
import torch
from torch import nn

B, G, S, E, L = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        def block(x, y):
            out = torch.cat([x, y], dim=-1)
            return out

        _, out = torch.func.jvp(block, (x, y), (x.cos(), y.cos()))
        return out


def inputs():
    return [
        torch.randn((B, G, S, E), generator=rng(0)),
        torch.randn((B, G, S, L), generator=rng(1)),
    ]


def calls(module):
    with torch.inference_mode():
        yield inputs()


class RegressionTest(unittest.TestCase):
    def test_export_of_jvp_in_inference_mode(self):
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
