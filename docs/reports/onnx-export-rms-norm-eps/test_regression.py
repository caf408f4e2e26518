"""[torch.onnx] rms_norm in float64 without eps takes the epsilon of float32, with opset 23

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
import torch.nn.functional as F
from torch import nn

S, D = 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        small = x * 1e-06
        out = F.rms_norm(small, (D,))
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)).to(torch.float64),
    ]


def compile_module(module, inputs, dynamic=False):
    shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs] if dynamic else None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    model = torch.onnx.export(program, tuple(inputs), dynamo=True, opset_version=23, verbose=False)  # runs it too
    return lambda *given: torch.utils._pytree.tree_unflatten(model(*given), program.call_spec.out_spec)


class RegressionTest(unittest.TestCase):
    def test_onnx_export_rms_norm_eps(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = compile_module(Module().eval(), inputs())(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 1.4
            torch.testing.assert_close(actual.double(), exact, atol=0.7, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
