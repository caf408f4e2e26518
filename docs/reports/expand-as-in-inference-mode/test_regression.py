# Owner(s): ["oncall: distributed"]
"""[DTensor] expand_as of a whole tensor to a split tensor, under inference_mode: a rank's size in place of the whole

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

T = 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, z):
        out = x.expand_as(z)
        return out


def inputs():
    return [
        torch.randn((1,), generator=rng(0)),
        torch.randn((T,), generator=rng(1)),
    ]


def calls(module):
    with torch.inference_mode():
        yield inputs()


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


def check():
    mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2
    placements = [Replicate(), Shard(0)]

    def run(module, call, whole=False):
        for given in calls(module):
            given = given if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(given, placements)]
            out = gather(call(*given))
        return out.shape

    module = Module().eval()
    eager = run(module, module, whole=True)
    module = Module().eval()
    actual = run(module, module)
    print(f"whole tensors {eager}, DTensors {actual}")
    assert actual == eager


def be_rank(rank, folder):
    sys.stdout = open(os.devnull if rank else 1, "w", buffering=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    check()


class RegressionTest(unittest.TestCase):
    def test_expand_as_in_inference_mode(self):
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
