# Owner(s): ["module: inductor"]
"""[Inductor] attention whose second product is in float16 and the first in float32, in training: RuntimeError, expected scalar type Float but found Half

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, D = 2, 3, 6, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, query, key, value):
        q = query.permute(0, 2, 1, 3)
        k = key.permute(0, 2, 1, 3)
        v = value.permute(0, 2, 1, 3)
        kt = k.transpose(-2, -1)
        products = q @ kt
        scores = products / 2.0
        high = scores.to(torch.float32)
        weights = high.softmax(dim=-1)
        low = weights.to(torch.float16)
        v_low = v.to(torch.float16)
        mixed = low @ v_low
        context = mixed.to(torch.float32)
        turned = context.transpose(1, 2)
        out = turned.reshape(B, S, D * H)
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, S, H, D), generator=rng(1)),
        torch.randn((B, S, H, D), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_two_dtypes_in_training(self):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        run(Module())
        try:
            run(torch.compile(Module(), dynamic=False))
        except Exception as error:
            raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
