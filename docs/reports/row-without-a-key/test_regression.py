# Owner(s): ["module: inductor"]
"""[Inductor] attention by where and a boolean mask: a row that keeps no key is 0 instead of the mean: wrong result

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
    def forward(self, q, k, v, mask):
        q_t = q.permute(0, 2, 1, 3)
        k_t = k.permute(0, 2, 1, 3)
        v_t = v.permute(0, 2, 1, 3)
        kt = k_t.transpose(-2, -1)
        scores = q_t @ kt
        constant = torch.full((), 8.0, dtype=torch.float32, device=q.device)
        scores2 = scores / constant
        constant2 = torch.full((), torch.finfo(torch.float32).min, dtype=torch.float32, device=q.device)
        scores3 = torch.where(mask, scores2, constant2)
        probs = scores3.softmax(dim=-1)
        out = probs @ v_t
        return out


def inputs():
    return [
        torch.randn((B, S, H, D), generator=rng(1)),
        torch.randn((B, T, H, D), generator=rng(3)),
        torch.randn((B, T, H, V), generator=rng(2)),
        torch.zeros((S, 1), dtype=torch.bool),
    ]


class Float64(torch.utils._python_dispatch.TorchDispatchMode):  # casts in the program become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(arg) for arg in args):
            kwargs["dtype"] = torch.float64
        double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        return torch.utils._pytree.tree_map(double, func(*args, **kwargs))


class RegressionTest(unittest.TestCase):
    def test_row_without_a_key(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            with Float64():
                exact = Module().eval().double()(*[x.double() if x.is_floating_point() else x for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 0.66
            torch.testing.assert_close(actual.double(), exact, atol=0.33, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
