# Owner(s): ["module: onnx"]
"""[torch.onnx] an output loses the cast that type promotion adds: half cumsum gives float32

The method below is for test/onnx/exporter/test_api.py, class TestExportAPIDynamo.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S, D = 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.cumsum(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)).to(torch.float16),
    ]


def compile_module(module, inputs, dynamic=False):
    shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs] if dynamic else None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    model = torch.onnx.export(program, tuple(inputs), dynamo=True, opset_version=18, verbose=False)  # runs it too
    return lambda *given: torch.utils._pytree.tree_unflatten(model(*given), program.call_spec.out_spec)


class RegressionTest(unittest.TestCase):
    def test_onnx_export_cast_of_an_output(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).dtype
            actual = compile_module(Module().eval(), inputs())(*inputs()).dtype
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
