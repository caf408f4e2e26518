# Owner(s): ["oncall: distributed"]
"""[DTensor] a write into a slice of an axis that is split over ranks, such as x[:3] = y, is lost

The method below is for test/distributed/tensor/test_tensor_ops.py, class DistTensorOpsTest.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import tempfile
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

T = 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, z):
        x[..., :T - 1] = z
        return x


def inputs():
    return [
        torch.randn((T,), generator=rng(0)),
        torch.randn((T - 1,), generator=rng(1)),
    ]


def check():
    with torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
        placements = [Shard(0), Replicate()]
        eager = Module().eval()(*inputs())
        given = [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
        actual = Module().eval()(*given).full_tensor()
        exact = Module().eval().double()(*[x.double() for x in inputs()])
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: whole tensors {off(eager)}, DTensors {off(actual)}")
        # atol: half of this bug's error, 2.2
        torch.testing.assert_close(actual.double(), exact, atol=1.1, rtol=0, equal_nan=True)


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_slice_of_shards_written(self):
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
