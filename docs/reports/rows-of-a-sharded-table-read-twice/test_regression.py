# Owner(s): ["oncall: distributed"]
"""[DTensor] an embedding from a table whose rows are split, read twice: AssertionError

The method below is for test/distributed/tensor/test_dtensor.py, class DTensorTest.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import tempfile
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

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


def check():
    with torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
        Module().eval()(*inputs())
        try:
            module = Module().eval()
            module.table = nn.Parameter(distribute_tensor(module.table, mesh, [Shard(0)]))
            given = [distribute_tensor(x, mesh, [Replicate()]) for x in inputs()]
            gather(module(*given))
        except Exception as error:
            raise AssertionError("only DTensors raise") from error


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_rows_of_a_sharded_table_read_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch.multiprocessing.spawn(be_rank, (folder,), nprocs=2)
            except torch.multiprocessing.ProcessRaisedException as error:
                if "AssertionError: " not in str(error):
                    raise
                raise AssertionError(str(error)) from None


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
