# Owner(s): ["module: meta tensors"]
"""[Inductor] nn.TransformerEncoderLayer on a transposed input, fast path: AssertionError, expected stride, since 2.13

The method below is for test/test_meta.py, class TestMeta.
2.11.0, 2.12.1: passes; 2.13.0, 2.14.1: runtime error; 2.15.0: runtime error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

H = 2


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
        self.out = set_weights(nn.TransformerEncoderLayer(H, H, 1, dropout=0.0, batch_first=True), 0)

    def forward(self, x):
        H = x.size(1)
        out = self.out(x)
        return out


def inputs():
    return [
        torch.randn((1, H, H), generator=rng(0)).transpose(-1, -2).contiguous().transpose(-1, -2),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_encoder_layer_strides(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
