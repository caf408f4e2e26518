# Owner(s): ["module: inductor"]
"""[Inductor] a custom operation that writes into a clone and reads the original: the clone is dropped, and the operation reads what it has written: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0, 2.15.0: wrong result
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


def block_function(clone: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    clone.add_(1.0)
    out = -sine
    return out


block = torch.library.custom_op("case_b9e1c9::block", block_function, mutates_args=('clone',))
block.register_fake(block_function)


class Module(nn.Module):
    def forward(self, x):
        sine = x.sin()
        clone = sine.clone()
        out = block(clone, sine)
        return out, clone


def inputs():
    return [
        torch.randn((S,), generator=rng(0)),
    ]


class Plain(Module):
    def forward(self, x):
        sine = x.sin()
        clone = sine.clone()
        out = block_function(clone, sine)
        return out, clone


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_custom_operation_reads_what_it_writes(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())[0]
        exact = Plain().eval().double()
        expected = exact(*[x.double() for x in inputs()])[0]
        # atol: 10 times eager's error against float64, 1.0e-08,
        # and 8 units in the last place of the largest value, 1 in float32
        self.assertEqual(actual.double(), expected, atol=1.1e-06, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
