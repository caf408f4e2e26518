# Owner(s): ["module: higher order operators"]
"""[Dynamo, Inductor] cond, scan, while_loop or map that captures a float (p of nn.Dropout), dynamic=True: AssertionError, can only be of Tensor, int, SymInt

The method below is for test/functorch/test_control_flow.py, class TestControlFlow.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows

torch._dynamo.config.capture_scalar_outputs = True

B, H, S, T, V = 4, 2, 2, 2, 32


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Dropout(0.0)

    def forward(self, probs, v2):
        B = probs.size(0)

        def block(probs, v2):
            probs, v2 = probs[None], v2[None]
            weights = self.weights(probs)
            out = weights @ v2
            return out[0]

        out = map_rows(lambda rows: block(*rows), (probs, v2))
        return out


def inputs():
    return [
        torch.randn((B, H, S, T), generator=rng(4)),
        torch.randn((B, H, T, V), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_dropout_in_a_map(self):
        with torch.no_grad():
            Module().eval()(*inputs())
            try:
                torch.compile(Module().eval(), dynamic=True)(*inputs())
            except Exception as error:
                raise AssertionError("only the compiled module raises") from error


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
