# Owner(s): ["module: inductor"]
"""[Inductor] torch.cond whose operand is a fused permuted product: running raises AssertionError, expected size 2==2, stride 1==2

The method below is for test/inductor/test_control_flow.py, class CondTests.
2.11.0, 2.13.0, 2.15.0: runtime error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, T, D = 1, 2, 1, 2, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y, z):
        transposed = x.permute(0, 2, 3, 1)
        product = z @ transposed
        scaled = product / 2.0

        def block(scaled, y):
            out = scaled + y
            return out

        def otherwise(*given):
            return -block(*given)

        out = torch.cond((scaled == scaled).any(), block, otherwise, (scaled, y))
        return out


def inputs():
    return [
        torch.randn((B, T, H, D), generator=rng(0)),
        torch.randn((T,), generator=rng(1)),
        torch.randn((S, D), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_operand_of_cond(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
