# Owner(s): ["oncall: distributed"]
"""[DTensor] torch.compile of a view that flattens a split axis behind another axis: ValueError, DTensorSpec doesn't allow specify shard_order

The method below is for test/distributed/tensor/test_dtensor_compile.py, class TestDTensorCompileE2E.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import tempfile
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

H, V = 2, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        flat = x.view(H * V)
        out = flat * 2.0
        return out


def inputs():
    return [
        torch.randn((H, V), generator=rng(0)),
    ]


def check():
    with torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
        Module().eval()(*inputs())
        try:
            given = [distribute_tensor(x, mesh, [Shard(1)]) for x in inputs()]
            torch.compile(Module().eval(), dynamic=False, backend='aot_eager')(*given).full_tensor()
        except Exception as error:
            assert "DTensorSpec doesn't allow specify shard_order" not in repr(error), "only DTensors raise"
            raise


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_flattened_shards_compiled(self):
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
