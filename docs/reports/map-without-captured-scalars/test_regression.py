# Owner(s): ["module: inductor"]
"""[Inductor] map or scan without fullgraph=True: DataDependentOutputException, unless capture_scalar_outputs is set

The method below is for test/inductor/test_control_flow.py, class MapTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):
            x = x[None]
            out = x.exp()
            return out[0]

        out = map_rows(lambda rows: block(*rows), (x,))
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_map_without_captured_scalars(self):
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
