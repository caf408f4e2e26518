# Owner(s): ["module: inductor"]
"""[Inductor] attention with masked_fill(mask == 0): keys whose mask is neither 0 nor 1 are hidden too: wrong result

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, S, T, D, V = 2, 3, 4, 5, 6, 7


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, x):
        q_t = q.permute(0, 2, 1, 3)
        k_t = k.transpose(1, 2)
        v_t = v.transpose(-2, 1)
        kt = k_t.transpose(-2, -1)
        scores = q_t @ kt
        scores2 = scores / 2.0
        drop = x == 0
        viewed = drop.view(B, 1, 1, T)
        scores3 = viewed.expand_as(scores2)
        scores4 = scores2.masked_fill(scores3, float("-inf"))
        probs = scores4.softmax(dim=-1)
        out = probs @ v_t
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(0)),
        torch.randn((B, T, H, D), generator=rng(3)),
        torch.randn((B, T, H, V), generator=rng(1)),
        torch.randn((B, T), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_integer_mask(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 1.9
            torch.testing.assert_close(actual.double(), exact, atol=0.93, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
