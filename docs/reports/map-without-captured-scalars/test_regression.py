# Owner(s): ["module: inductor"]
"""[Inductor] map or scan without fullgraph=True: DataDependentOutputException, unless capture_scalar_outputs is set

The method below is for test/inductor/test_control_flow.py, class MapTests.
2.11.0, 2.13.0: compile error; 2.15.0: compile error DataDependentOutputException
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        B = x.size(0)

        def block(x):
            x = x[None]
            out = x.exp()
            return out[0]

        out = map_rows(lambda rows: block(*rows), (x,))
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_map_without_captured_scalars(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
