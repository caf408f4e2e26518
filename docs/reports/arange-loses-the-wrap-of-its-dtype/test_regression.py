# Owner(s): ["module: inductor"]
"""[Inductor] integers computed from torch.arange in a narrow dtype do not wrap: wrong result, such as -1 in uint8, or an index that is out of bounds

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, mask):
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


class RegressionTest(unittest.TestCase):
    def test_arange_loses_the_wrap_of_its_dtype(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            with Float64():
                exact = Module().eval().double()(*[x.double() if x.is_floating_point() else x for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 2.6e+02
            torch.testing.assert_close(actual.double(), exact, atol=1.3e+02, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
