# Owner(s): ["module: inductor"]
"""[Inductor] as_strided of a slice or an expansion of a computed tensor reads the view as if it were its base: wrong result

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

A, B = 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        negated = -x
        wide = negated.expand(3, A, B)
        read = wide.as_strided((A * B,), (1,))
        out = -read
        return out


def inputs():
    return [
        torch.randn((A, B), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_as_strided_of_a_view(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, compiled {off(actual)}")
            # atol: half of this bug's error, 3.7
            torch.testing.assert_close(actual.double(), exact, atol=1.9, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
