# Owner(s): ["module: nn"]
"""[Dynamo] nn.MultiheadAttention with batch_first=True and bias=False, in inference: contiguous strides, where eager's result is transposed

The method below is for test/test_transformers.py, class TestTransformers.
2.11.0: passes; 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


def set_weights(layer, seed):
    generator = rng(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.size(-1) ** -0.5, generator=generator)
    return layer


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = set_weights(nn.MultiheadAttention(B, B, bias=False, batch_first=True), 0)

    def forward(self, x):
        B = x.size(0)
        out = self.out(x, x, x)[0]
        return out


def inputs():
    return [
        torch.randn((B, B, B), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_multihead_attention_strides(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs()).stride()
        module = Module().eval()
        expected = module(*inputs()).stride()
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
