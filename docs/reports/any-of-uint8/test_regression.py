# Owner(s): ["module: inductor"]
"""[Inductor] any of uint8 gives bool, where eager gives uint8, so that arithmetic on it does not wrap

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 2


class Module(nn.Module):
    def forward(self, mask):
        out = mask.any(dim=-1)
        return out


def inputs():
    return [
        torch.full((D,), 1.0).to(torch.uint8),
    ]


class RegressionTest(unittest.TestCase):
    def test_any_of_uint8(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).dtype
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).dtype
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
