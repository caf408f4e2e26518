# Owner(s): ["module: inductor"]
"""[Inductor] attention scores divided by a whole number, in training: AssertionError, Guard failed on the same frame; IndexError before torch 2.15

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, T, D = 2, 2, 3, 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        scaled = scores / 8
        probs = scaled.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_whole_number_divisor(self):
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
