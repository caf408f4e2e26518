"""[OpenVINO] a boolean mask expanded to the scores' shape masks by its first column alone

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data
import torch
from torch import nn
import openvino

B, H, S, T, D = 2, 3, 5, 7, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, drop):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        wide = drop.expand(B, H, S, T)
        filled = scores.masked_fill(wide, -10000.0)
        probs = filled.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
        ~(torch.ones((B, 1, 1, T), dtype=torch.bool) & (torch.arange(T) < torch.randint(1, T + 1, (B, 1, 1, 1), generator=rng(3)))),
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
    def test_openvino_expanded_mask(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = compile_module(Module().eval(), inputs())(*inputs())
            exact = Module().eval().double()(*[x.double() if x.is_floating_point() else x for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 2.9
            torch.testing.assert_close(actual.double(), exact, atol=1.5, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
