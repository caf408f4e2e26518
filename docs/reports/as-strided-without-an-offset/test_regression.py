# Owner(s): ["module: inductor"]
"""[Inductor] as_strided without an offset, of an element of a computed tensor, such as x[4], reads the first element: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        neg = -x
        narrow = neg[..., 4:D]
        out = narrow.as_strided((1,), (1,))
        return out


def inputs():
    return [
        torch.randn((D,), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_as_strided_without_an_offset(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 2.6
            torch.testing.assert_close(actual.double(), exact, atol=1.3, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
