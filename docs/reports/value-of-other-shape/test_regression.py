# Owner(s): ["module: inductor"]
"""[Inductor] attention by torch.bmm whose value is a reshaped 1-d input: compiling raises RuntimeError, expected 2 dimensions or more

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, mask):
        k2 = k.reshape(1, D, D)
        kt = k2.transpose(-2, -1)
        q2 = q.view(1, 1, D)
        scores = torch.bmm(q2, kt)
        scores2 = scores.reshape(1, 1, 1, D)
        scores3 = scores2 + mask
        scores4 = scores3.reshape(1, 1, D)
        probs = scores4.softmax(dim=-1)
        v2 = v.reshape(1, D, D)
        product = torch.bmm(probs, v2)
        out = product.reshape(1, 1, 1, D)
        return out


def inputs():
    return [
        torch.randn((1, 1, 1, D), generator=rng(0)),
        torch.randn((1, 1, D, D), generator=rng(1)),
        torch.randn((D * D,), generator=rng(3)),
        torch.ones((D,), dtype=torch.bool),
    ]


class RegressionTest(unittest.TestCase):
    def test_value_of_other_shape(self):
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
