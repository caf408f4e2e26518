# Owner(s): ["module: inductor"]
"""[Inductor] integers computed from torch.arange that wrap around in int64: InductorError, OverflowError, too big to convert to int64_t

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

E = 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
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


class RegressionTest(unittest.TestCase):
    def test_arange_beyond_int64(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=False)(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
