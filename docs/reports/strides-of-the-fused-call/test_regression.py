# Owner(s): ["module: inductor"]
"""[Inductor] attention made a fused call returns its output in the strides of that call, not in eager's (from torch 2.14.1 on with freezing)

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_strides_of_the_fused_call(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic, options={'freezing': True})
        actual = compiled(*inputs()).stride()
        module = Module().eval()
        expected = module(*inputs()).stride()
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
