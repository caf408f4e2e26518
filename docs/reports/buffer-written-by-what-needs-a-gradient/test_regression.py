# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] a buffer is written to with a tensor that needs a gradient: the second training step raises RuntimeError, backward through the graph a second time

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
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
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn((S,), generator=rng(0)))

    def forward(self, x, y):
        self.weight.copy_(x)
        out = y.exp()
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(1)),
        torch.randn((S,), generator=rng(2)),
    ]


def calls(module):
    yield inputs()
    module.train()
    given = inputs()
    with torch.enable_grad():
        yield given
    given = inputs()
    with torch.enable_grad():
        yield given


class RegressionTest(unittest.TestCase):
    def test_buffer_written_by_what_needs_a_gradient(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    given[0].requires_grad_(torch.is_grad_enabled())
                    given[1].requires_grad_(torch.is_grad_enabled())
                    out = call(*given)
                    torch.manual_seed(1)
                    outs = [o for o in [out] if o.requires_grad]
                    if outs:
                        sum((o * torch.randn(o.shape).to(o)).sum() for o in outs).backward()

            module = Module().eval()
            run(module, module)
            try:
                module = Module().eval()
                compiled = torch.compile(module, dynamic=False)
                run(module, compiled)
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
