# Owner(s): ["module: inductor"]
"""[Inductor] attention made a fused call returns its output in the strides of that call, not in eager's (from torch 2.14.1 on with freezing)

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S, H, D = 3, 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        q = x.permute(0, 2, 1, 3)
        k = x.permute(0, 2, 1, 3)
        v = x.permute(0, 2, 1, 3)
        kt = k.transpose(-2, -1)
        scores = q @ kt
        weights = scores.softmax(dim=-1)
        out = weights @ v
        return out


def inputs():
    return [
        torch.randn((1, S, H, D), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_strides_of_the_fused_call(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False, options={'freezing': True})(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
