# Owner(s): ["module: inductor"]
"""[Inductor] integers computed from torch.arange that wrap around in int64: InductorError, OverflowError, too big to convert to int64_t

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
2.11.0, 2.13.0: compile error; 2.15.0: compile error OverflowError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch
from torch import nn

E = 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        E = x.size(0)
        count = torch.arange(E, dtype=torch.int64, device=x.device)
        count2 = count * 10000000000
        count3 = count2 * 10000000000
        scale = count3.to(torch.float32)
        out = x * scale
        return out


def inputs():
    return [
        torch.randn((E,), generator=rng(0)),
    ]


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_arange_beyond_int64(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        compiled(*inputs())


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
