# Owner(s): ["module: inductor"]
"""[Inductor] attention by where and a boolean mask: a row that keeps no key is 0 instead of the mean: wrong result

The method below is for test/inductor/test_fused_attention.py, class TestSDPAPatternRewriterTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_row_without_a_key(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Module().eval().double()
        with Float64():
            expected = exact(*[x.double() if x.is_floating_point() else x for x in inputs()])
        # atol: 10 times eager's error against float64, 6.3e-08,
        # and 8 units in the last place of the largest value, 0.88 in float32
        self.assertEqual(actual.double(), expected, atol=1.5e-06, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
