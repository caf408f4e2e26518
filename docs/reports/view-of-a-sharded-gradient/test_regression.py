# Owner(s): ["oncall: distributed"]
"""[DTensor] backward of a sum of a transposed product, one factor split: RuntimeError, view size is not compatible

The method below is for test/distributed/tensor/test_dtensor.py, class DTensorTest.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import tempfile
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

B, H, S, D, L = 2, 3, 4, 6, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    loss = "sum"

    def forward(self, x, z):
        product = x @ z
        out = product.transpose(1, 2)
        return out


def inputs():
    return [
        torch.randn((S, L), generator=rng(0)),
        torch.randn((B, H, L, D), generator=rng(1)),
    ]


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


def check():
    mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
    placements = [Replicate(), Shard(3)]

    def run(call, whole=False):
        given = inputs() if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
        given[0].requires_grad_()
        given[1].requires_grad_()
        out = gather(call(*given))
        out.sum().backward()

    run(Module(), whole=True)
    try:
        run(Module())
    except Exception as error:
        assert "view size is not compatible" not in repr(error), "only DTensors raise"
        raise


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_view_of_a_sharded_gradient(self):
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
