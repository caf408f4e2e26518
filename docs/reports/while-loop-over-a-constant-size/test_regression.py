# Owner(s): ["module: inductor"]
"""[Inductor] torch.while_loop over a size that is marked dynamic and becomes a constant: compiling raises LoweringException, 'int' object has no attribute 'meta'

The method below is for test/inductor/test_control_flow.py, class WhileLoopTests.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

B, D = 3, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        B = x.size(0)
        D = x.size(1)
        total = x + y

        def block(total):
            total = total[None]
            out = total.exp()
            return out[0]

        def step(row, out):
            at = row.reshape(1)
            return row + 1, out.index_copy(0, at, block(total.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, D), dtype=torch.float32, device=total.device)
        _, out = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=total.device), zeros))
        return out


def inputs(D=D):
    return [
        torch.randn((B, D), generator=rng(0)),
        torch.randn((B, D), generator=rng(1)),
    ]


def calls(module):
    yield inputs()
    given = inputs(D=5)
    torch._dynamo.maybe_mark_dynamic(given[0], 0)
    yield given


class RegressionTest(unittest.TestCase):
    def test_while_loop_over_a_constant_size(self):
        with torch.no_grad():
            def run(module, call):
                for given in calls(module):
                    out = call(*given)

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
