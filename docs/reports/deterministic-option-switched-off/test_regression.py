# Owner(s): ["module: dynamo"]
"""[Dynamo] torch._inductor.config.deterministic, also as TORCHINDUCTOR_DETERMINISTIC=1, is switched off by the first compilation

The method below is for test/dynamo/test_misc.py, class MiscTests.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: state changed
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch._inductor.config
import torch
from torch import nn

S, D = 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.softmax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch._inductor.config.patch({"deterministic": True})
    @torch.no_grad()
    def test_deterministic_option_switched_off(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        before = [torch._inductor.config.deterministic]
        compiled(*inputs())
        self.assertEqual([torch._inductor.config.deterministic], before)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
