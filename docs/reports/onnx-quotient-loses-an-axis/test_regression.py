"""[ONNX Runtime] a factor 1 / y loses the axes that the 1 adds

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
    def forward(self, x, y):
        one = torch.ones((1, 1), dtype=torch.float32, device=x.device)
        inverse = one / y
        out = x * inverse
        return out


def inputs():
    return [
        torch.randn((D,), generator=rng(0)),
        torch.randn((D,), generator=rng(1)),
    ]


def compile_module(module, inputs, dynamic=False):
    shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs] if dynamic else None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    model = torch.onnx.export(program, tuple(inputs), dynamo=True, opset_version=18, verbose=False)  # runs it too
    return lambda *given: torch.utils._pytree.tree_unflatten(model(*given), program.call_spec.out_spec)


class RegressionTest(unittest.TestCase):
    def test_onnx_quotient_loses_an_axis(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).shape
            actual = compile_module(Module().eval(), inputs())(*inputs()).shape
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
