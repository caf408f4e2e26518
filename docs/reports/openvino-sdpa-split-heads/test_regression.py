"""[OpenVINO] heads split before scaled_dot_product_attention give a wrong result where heads and length are equal

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
import openvino

B, H, D = 2, 8, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        q2 = q.reshape(B, H, H, D)
        k2 = k.reshape(B, H, H, D)
        v2 = v.reshape(B, H, H, D)
        q3 = q2.permute(0, 2, 1, 3)
        k3 = k2.permute(0, 2, 1, 3)
        v3 = v2.permute(0, 2, 1, 3)
        out = F.scaled_dot_product_attention(q3, k3, v3)
        return out


def inputs():
    return [
        torch.randn((B, H, D * H), generator=rng(0)),
        torch.randn((B, H, D * H), generator=rng(1)),
        torch.randn((B, H, D * H), generator=rng(2)),
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
    def test_openvino_sdpa_split_heads(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = compile_module(Module().eval(), inputs())(*inputs())
            with sdpa_kernel(SDPBackend.MATH):
                exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 1.2
            torch.testing.assert_close(actual.double(), exact, atol=0.59, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
