# Owner(s): ["module: inductor"]
"""[Inductor] x + 0.0, x.clone().div_(1.0) and the like as an output return x itself, since torch 2.14: a later write changes both

The method below is for test/inductor/test_torchinductor.py, class CommonTemplate.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        clone = x.clone()
        clone.add_(0.0)
        return clone


def inputs():
    return [
        torch.randn((T,), generator=rng(0)),
    ]


class RegressionTest(unittest.TestCase):
    def test_clone_plus_zero(self):
        with torch.no_grad():
            def run(call):
                given = inputs()
                out = call(*given)
                return out.untyped_storage().data_ptr() == given[0].untyped_storage().data_ptr()

            eager = run(Module().eval())
            actual = run(torch.compile(Module().eval(), dynamic=False))
            print(f"eager {eager}, compiled {actual}")
            assert actual == eager


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
