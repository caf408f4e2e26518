# Owner(s): ["module: dynamo"]
"""[Dynamo] torch.compile(torch.compile(module)) is a function that skips the module's hooks: wrong result

The method below is for test/dynamo/test_misc.py, class MiscTests.
2.11.0, 2.13.0, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.exp()
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)),
    ]


def calls(module):
    module.register_forward_hook(lambda _, given, result: 2 * result)
    yield inputs()


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_compiled_twice(self, dynamic):
        def run(module, call, double=False):
            for given in calls(module):
                given = [x.double() for x in given] if double else given
                out = call(*given)
            return out

        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(torch.compile(module, dynamic=dynamic), dynamic=dynamic)
        actual = run(module, compiled)
        exact = Module().eval().double()
        expected = run(exact, exact, double=True)
        # atol: 10 times eager's error against float64, 3.6e-07,
        # and 8 units in the last place of the largest value, 9.3 in float32
        self.assertEqual(actual.double(), expected, atol=1.2e-05, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
