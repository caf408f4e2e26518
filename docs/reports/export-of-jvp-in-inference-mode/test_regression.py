# Owner(s): ["oncall: export"]
"""[export] an exported torch.func.jvp raises TypeError under inference_mode; every later jvp of the process raises too

The method below is for test/export/test_export.py, class TestExport.
2.11.0: compile error; 2.13.0: runtime error; 2.15.0: runtime error TypeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, G, S, E, L = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        def block(x, y):
            out = torch.cat([x, y], dim=-1)
            return out

        _, out = torch.func.jvp(block, (x, y), (x.cos(), y.cos()))
        return out


def inputs():
    return [
        torch.randn((B, G, S, E), generator=rng(0)),
        torch.randn((B, G, S, L), generator=rng(1)),
    ]


def calls(module):
    with torch.inference_mode():
        yield inputs()


class RegressionTest(TestCase):
    @parametrize("dynamic", [False])
    def test_export_of_jvp_in_inference_mode(self, dynamic):
        def run(module, call):
            for given in calls(module):
                out = call(*given)

        torch._dynamo.reset()
        shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs()] if dynamic else None
        module = Module().eval()
        program = torch.export.export(module, tuple(inputs()), dynamic_shapes=shapes)
        compiled = program.module()
        run(module, compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
