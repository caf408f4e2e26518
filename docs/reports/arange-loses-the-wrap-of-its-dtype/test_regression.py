# Owner(s): ["module: inductor"]
"""[Inductor] integers computed from torch.arange in a narrow dtype do not wrap: wrong result, such as -1 in uint8, or an index that is out of bounds

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


class Module(nn.Module):
    def forward(self, mask):
        S = mask.size(0)
        arange = torch.arange(S, dtype=torch.int64, device=mask.device)
        scaled = arange * (-1)
        cast = scaled.to(torch.uint8)
        out = cast.to(torch.float32)
        return out


def inputs():
    return [
        torch.randint(0, 2, (S,), generator=rng(0)),
    ]


class Float64(torch.utils._python_dispatch.TorchDispatchMode):  # casts in the program become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(arg) for arg in args):
            kwargs["dtype"] = torch.float64
        double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        return torch.utils._pytree.tree_map(double, func(*args, **kwargs))


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_arange_loses_the_wrap_of_its_dtype(self, dynamic):
        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        actual = compiled(*inputs())
        exact = Module().eval().double()
        with Float64():
            expected = exact(*[x.double() if x.is_floating_point() else x for x in inputs()])
        # atol: 10 times eager's error against float64, 0.0e+00,
        # and 8 units in the last place of the largest value, 2.6e+02 in float32
        self.assertEqual(actual.double(), expected, atol=2.4e-04, rtol=0)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
