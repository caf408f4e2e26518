# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] index_select of a channels_last tensor on the CPU keeps channels_last; eager's result is contiguous

The method below is for test/test_decomp.py, class DecompOneOffTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, H, W, C = 2, 3, 4, 5


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, places):
        channels = x.permute(0, 3, 1, 2)
        out = channels.index_select(-1, places)
        return out


def inputs():
    return [
        torch.randn((B, H, W, C), generator=rng(0)),
        torch.randint(0, 2, (W,), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_index_select_of_channels_last(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs()).stride()
            actual = torch.compile(Module().eval(), dynamic=False)(*inputs()).stride()
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
