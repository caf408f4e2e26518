"""[OpenVINO] bilinear interpolation of three rows to one takes the first row, torch the middle one

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data
import torch
import torch.nn.functional as F
from torch import nn
import openvino

B, H, T, V = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = F.interpolate(x, size=(1, 3), mode="bilinear")
        return out


def inputs():
    return [
        torch.randn((B, T, H, V), generator=rng(0)),
    ]


def compile_module(module, inputs, dynamic=False):
    shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs] if dynamic else None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    model = openvino.convert_model(program)
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(*given):
        results = compiled([x.detach().contiguous().numpy() for x in given]).values()
        return torch.utils._pytree.tree_unflatten(map(torch.from_numpy, results), program.call_spec.out_spec)

    return run


class RegressionTest(unittest.TestCase):
    def test_openvino_bilinear_to_one_row(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = compile_module(Module().eval(), inputs())(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 2.7
            torch.testing.assert_close(actual.double(), exact, atol=1.3, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
