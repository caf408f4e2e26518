# Owner(s): ["oncall: export"]
"""[export] a tensor that a function makes under two torch.func.jvp is lost: the exported program returns a FakeTensor, or raises INTERNAL ASSERT

The method below is for test/export/test_export.py, class TestExport.
2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        def block(x):

            def block2(x):
                sine = x.sin()
                return sine

            _, sine = torch.func.jvp(block2, (x,), (x.cos(),))
            constant = torch.full((), 1.0, dtype=torch.float32, device=x.device)
            out = sine * constant
            return out

        _, out = torch.func.jvp(block, (x,), (x.cos(),))
        return out


def inputs():
    return [
        torch.randn((T,), generator=rng(1)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_tensor_made_within_two_jvp(self, dynamic):
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
