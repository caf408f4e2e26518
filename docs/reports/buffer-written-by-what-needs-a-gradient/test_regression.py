# Owner(s): ["module: pt2-dispatcher"]
"""[AOTAutograd] a buffer is written to with a tensor that needs a gradient: the second training step raises RuntimeError, backward through the graph a second time

The method below is for test/functorch/test_aotdispatch.py, class TestAOTAutograd.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: runtime error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
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


class RegressionTest(TestCase):
    @parametrize("dynamic", [False, True])
    @torch.no_grad()
    def test_buffer_written_by_what_needs_a_gradient(self, dynamic):
        def run(module, call):
            for given in calls(module):
                given[0].requires_grad_(torch.is_grad_enabled())
                given[1].requires_grad_(torch.is_grad_enabled())
                out = call(*given)
                torch.manual_seed(1)
                outs = [o for o in [out] if o.requires_grad]
                if outs:
                    sum((o * torch.randn(o.shape).to(o)).sum() for o in outs).backward()

        torch._dynamo.reset()
        module = Module().eval()
        compiled = torch.compile(module, dynamic=dynamic)
        run(module, compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
