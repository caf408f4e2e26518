# Owner(s): ["module: inductor"]
"""[Inductor] amax or amin of a half-precision result in training: the gradient is NaN

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: NaN or infinity
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        total = x + y
        out = total.amax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)).to(torch.float16),
        torch.randn((S,), generator=rng(1)).to(torch.float16),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    def test_amax_of_a_sum_in_training(self, dynamic):
        def run(call):
            given = inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        torch._dynamo.reset()
        module = Module()
        compiled = torch.compile(module, dynamic=dynamic)
        self.assertTrue(run(compiled).isfinite().all())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
