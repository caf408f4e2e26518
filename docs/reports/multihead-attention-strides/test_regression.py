# Owner(s): ["module: nn"]
"""[Dynamo] nn.MultiheadAttention with batch_first=True and bias=False, in inference: contiguous strides, where eager's result is transposed

The method below is for test/test_transformers.py, class TestTransformers.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B = 2


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
        self.out = set_weights(nn.MultiheadAttention(B, B, bias=False, batch_first=True), 0)

    def forward(self, x):
        out = self.out(x, x, x)[0]
        return out


def inputs():
    return [
        torch.randn((B, B, B), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_multihead_attention_strides(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
