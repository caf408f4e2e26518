# Owner(s): ["module: aotinductor"]
"""[AOTInductor] a package of a module that writes to a parameter: its first call raises ValueError, leaves has length 3 but the spec holds 2 items

The method below is for test/inductor/test_aot_inductor.py, class AOTInductorTestsTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1: runtime error; 2.15.0: runtime error ValueError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((2,), generator=rng(1)))

    def forward(self, x):
        self.weight.mul_(x)
        out = x.exp()
        return out, self.weight


def inputs():
    return [
        torch.randn((2,), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_parameter_written_in_a_package(self, dynamic):
        torch._dynamo.reset()
        shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs()] if dynamic else None
        module = Module().eval()
        program = torch.export.export(module, tuple(inputs()), dynamic_shapes=shapes)
        compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
