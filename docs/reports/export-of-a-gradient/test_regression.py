# Owner(s): ["oncall: export"]
"""[export] torch.export of torch.func.grad leaves its input unused and returns a FakeTensor, or raises

The method below is for test/export/test_export.py, class TestExport.
2.11.0: compile error; 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, H, S, D = 2, 3, 1, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = x.permute(2, 0, 3, 1, 4)
        unbind = transposed.unbind(0)[0]

        def block(y, unbind):
            out = y @ unbind
            return out

        out = torch.func.grad(lambda *given: block(*given).sum())(y, unbind)
        return out


def inputs():
    return [
        torch.randn((B, S, 3, H, D), generator=rng(0)),
        torch.randn((B, H, S, S), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_export_of_a_gradient(self, dynamic):
        torch._dynamo.reset()
        shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs()] if dynamic else None
        module = Module().eval()
        program = torch.export.export(module, tuple(inputs()), dynamic_shapes=shapes)
        compiled = program.module()
        actual = compiled(*inputs()).__class__
        module = Module().eval()
        expected = module(*inputs()).__class__
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
