# Owner(s): ["oncall: distributed"]
"""[DTensor] an embedding from a table whose rows are split, read twice: AssertionError

The method below is for test/distributed/tensor/test_dtensor.py, class DTensorTest.
2.11.0, 2.13.0, 2.15.0: runtime error AssertionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import torch
import torch.nn.functional as F
from torch import nn

S, T, D = 2, 4, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn((T, D), generator=rng(1)))

    def forward(self, tokens):
        rows = F.embedding(tokens, self.table)
        out = rows.softmax(dim=-1)
        return out, rows


def inputs():
    return [
        torch.randint(0, 2, (S,), generator=rng(0)),
    ]


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


class RegressionTest(DTensorTestBase):
    device_type, world_size = "cpu", 2

    @with_comms
    @torch.no_grad()
    def test_rows_of_a_sharded_table_read_twice(self):
        mesh = self.build_device_mesh()
        whole = Module().eval()
        whole(*inputs())
        module = Module().eval()
        module.table = nn.Parameter(distribute_tensor(module.table, mesh, [Shard(0)]))
        given = [distribute_tensor(x, mesh, [Replicate()]) for x in inputs()]
        gather(module(*given))


if __name__ == "__main__":
    run_tests()
