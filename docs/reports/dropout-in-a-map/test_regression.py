# Owner(s): ["module: higher order operators"]
"""[Dynamo, Inductor] cond, scan, while_loop or map that captures a float (p of nn.Dropout), dynamic=True: AssertionError, can only be of Tensor, int, SymInt

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
fails in 2.15.0; right in 2.11.0, 2.13.0; a regression: last good 2.13.0, first bad 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows

torch._dynamo.config.capture_scalar_outputs = True

B, H, S, T, V = 4, 2, 2, 2, 32


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Dropout(0.0)

    def forward(self, probs, v2):
        B = probs.size(0)

        def block(probs, v2):
            probs, v2 = probs[None], v2[None]
            weights = self.weights(probs)
            out = weights @ v2
            return out[0]

        out = map_rows(lambda rows: block(*rows), (probs, v2))
        return out


def inputs():
    return [
        torch.randn((B, H, S, T), generator=rng(4)),
        torch.randn((B, H, T, V), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_dropout_in_a_map(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
