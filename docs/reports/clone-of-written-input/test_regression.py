# Owner(s): ["module: inductor"]
"""[Inductor] a clone of an input that the program has written to is returned as that input itself: a later write changes both

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

L, D = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, row, place):
        x[place] = row
        out = x.clone()
        return out


def inputs():
    return [
        torch.randn((L, D), generator=rng(0)),
        torch.randn((D,), generator=rng(1)),
        torch.randint(0, 2, (1,), generator=rng(2)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_clone_of_written_input(self, dynamic):
        def run(call):
            given = inputs()
            out = call(*given)
            return out.untyped_storage().data_ptr() == given[0].untyped_storage().data_ptr()

        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = run(compiled)
        module = Module().eval()
        expected = run(module)
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
