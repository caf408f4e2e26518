"""[DTensor] a write into a slice of an axis that is split over ranks, such as x[:3] = y, is lost

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/slice-of-shards-written.case.yaml --subject sharded
"""
import sys, tempfile, traceback

try:
    import torch.distributed.tensor
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
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


def show(mesh):
    torch.set_grad_enabled(False)
    placements = [Shard(0), Replicate()]
    module = Module().eval()
    given = [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
    actual = module(*given).full_tensor()
    exact = Module().eval().double()
    expected = exact(*[x.double() for x in inputs()])
    print(f"whole tensors: {expected}\nDTensors: {actual}")
    # atol: 10 times eager's error against float64, 0.0e+00,
    # and 8 units in the last place of the largest value, 0.66 in float32
    torch.testing.assert_close(actual.double(), expected, atol=6.3e-07, rtol=0)


# The program ends here. The rest runs it on two ranks, processes that talk by gloo.
def be_rank(rank, folder):
    sys.stdout, mesh = open(f"{folder}/{rank}", "w", buffering=1), None
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        show(mesh)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        sys.exit(1 if mesh is not None and "AssertionError" in traceback.format_exc() else 125)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(be_rank, (folder,), nprocs=2)
        except torch.multiprocessing.ProcessExitedException as first:
            print(open(f"{folder}/{first.error_index}").read(), file=sys.stderr)
            sys.exit(first.exit_code)
