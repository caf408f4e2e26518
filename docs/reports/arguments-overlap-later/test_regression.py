# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] arguments overlap in another way than in the first call, one is written: wrong values, as nothing is compiled anew

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

D = 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, cache, tail):
        head = cache[..., :D - 2]
        head.mul_(3.0)
        out = head + tail
        return out


def inputs():
    cache = torch.randn((D,), generator=rng(0))
    return [
        cache,
        cache.clone()[2:D],
    ]


def calls(module):
    yield inputs()
    cache, tail = inputs()
    yield [cache, cache[2:D]]


class RegressionTest(unittest.TestCase):
    def test_arguments_overlap_later(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    out = call(*given)
                return out

            module = Module().eval()
            eager = run(module, module)
            module = Module().eval()
            compiled = torch.compile(module, dynamic=False)
            actual = run(module, compiled)
            print(f"eager {eager}, compiled {actual}")
            torch.testing.assert_close(actual, eager, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
