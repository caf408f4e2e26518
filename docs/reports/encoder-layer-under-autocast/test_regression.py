# Owner(s): ["module: pt2-dispatcher"]
"""nn.TransformerEncoderLayer under CPU autocast, fast path: compiled gives float32, eager bfloat16

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, D, M = 1, 2, 1, 1, 1


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
        self.out = set_weights(nn.TransformerEncoderLayer(D * H, H, M, dropout=0.0, batch_first=True), 0)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = self.out(x)
        return out


def inputs():
    return [
        torch.randn((B, S, D * H), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_encoder_layer_under_autocast(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs()).dtype
        module = Module().eval()
        expected = module(*inputs()).dtype
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
