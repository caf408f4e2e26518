"""[OpenVINO] floor division of negative integers truncates

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data
import torch
from torch import nn
import openvino

S = 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = torch.div(x, 2, rounding_mode="floor")
        return out


def inputs():
    return [
        torch.randint(-2, 3, (S,), generator=rng(0)),
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
    def test_openvino_floor_division(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = compile_module(Module().eval(), inputs())(*inputs())
            print(f"eager {eager}, compiled {actual}")
            torch.testing.assert_close(actual, eager, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
