# Owner(s): ["module: inductor"]
"""[Inductor] torch.while_loop over a size that is marked dynamic and becomes a constant: compiling raises LoweringException, 'int' object has no attribute 'meta'

The method below is for test/inductor/test_control_flow.py, class WhileLoopTests.
Releases: fails in 2.11.0, 2.13.0, 2.15.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_while_loop_over_a_constant_size(self, dynamic):
        def run(module, call):
            for given in calls(module):
                out = call(*given)

        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        run(module, compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
