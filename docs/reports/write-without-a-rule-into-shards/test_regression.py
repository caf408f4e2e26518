# Owner(s): ["oncall: distributed"]
"""[DTensor] index_copy_, index_add_ and other writes without a rule of their own: the write is lost, or the tensor gets another shape

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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

S, T, D = 1, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, w, z, mask):
        product = x @ w
        z.index_copy_(0, mask, product)
        return z


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
        torch.randn((D, T), generator=rng(1)),
        torch.randn((S, T), generator=rng(2)),
        torch.randint(0, 2, (S,), generator=rng(3)),
    ]


def check():
    with torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
        placements = [Shard(1), Shard(0), Replicate(), Replicate()]
        eager = Module().eval()(*inputs())
        given = [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
        actual = Module().eval()(*given).full_tensor()
        exact = Module().eval().double()(*[x.double() if x.is_floating_point() else x for x in inputs()])
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: whole tensors {off(eager)}, DTensors {off(actual)}")
        # atol: half of this bug's error, 3
        torch.testing.assert_close(actual.double(), exact, atol=1.5, rtol=0, equal_nan=True)


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_write_without_a_rule_into_shards(self):
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
