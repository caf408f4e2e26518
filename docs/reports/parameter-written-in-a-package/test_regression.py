# Owner(s): ["module: aotinductor"]
"""[AOTInductor] a package of a module that writes to a parameter: its first call raises ValueError, leaves has length 3 but the spec holds 2 items

The method below is for test/inductor/test_aot_inductor.py, class AOTInductorTestsTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((2,), generator=rng(1)))

    def forward(self, x):
        self.weight.mul_(x)
        out = x.exp()
        return out, self.weight


def inputs():
    return [
        torch.randn((2,), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_parameter_written_in_a_package(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                module = Module().eval()
                program = torch.export.export(module, tuple(inputs()), dynamic_shapes=None)
                compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
                compiled(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
