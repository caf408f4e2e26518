# Owner(s): ["module: dynamo"]
"""[Dynamo] torch._inductor.config.deterministic, also as TORCHINDUCTOR_DETERMINISTIC=1, is switched off by the first compilation

The method below is for test/dynamo/test_misc.py, class MiscTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
import torch._inductor.config

S, D = 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.softmax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_deterministic_option_switched_off(self):
        with torch.no_grad(), torch._inductor.config.patch({'deterministic': True}):
            before = [torch._inductor.config.deterministic]
            torch.compile(Module().eval(), dynamic=False)(*inputs())
            afterwards = [torch._inductor.config.deterministic]
            print(f"before {before}, afterwards {afterwards}")
            assert afterwards == before


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
