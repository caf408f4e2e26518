# Owner(s): ["module: meta tensors"]
"""[Inductor] nn.TransformerEncoderLayer on a transposed input, fast path: AssertionError, expected stride, since 2.13

The method below is for test/test_meta.py, class TestMeta.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

H = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


def set_weights(layer, seed):
    generator = rng(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.size(-1) ** -0.5, generator=generator)
    return layer


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = set_weights(nn.TransformerEncoderLayer(H, H, 1, dropout=0.0, batch_first=True), 0)

    def forward(self, x):
        out = self.out(x)
        return out


def inputs():
    return [
        torch.randn((1, H, H), generator=rng(0)).transpose(-1, -2).contiguous().transpose(-1, -2),
    ]


class RegressionTest(unittest.TestCase):
    def test_encoder_layer_strides(self):
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
