"""[DTensor] index_copy_, index_add_ and other writes without a rule of their own: the write is lost, or the tensor gets another shape

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/index-copied-partial-sum.case.yaml --subject sharded
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


def show(mesh):
    torch.set_grad_enabled(False)
    placements = [Shard(1), Shard(0), Replicate(), Replicate()]
    module = Module().eval()
    given = [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
    actual = module(*given).full_tensor()
    exact = Module().eval().double()
    expected = exact(*[x.double() if x.is_floating_point() else x for x in inputs()])
    print(f"whole tensors: {expected}\nDTensors: {actual}")
    # atol: 10 times eager's error against float64, 1.7e-07,
    # and 8 units in the last place of the largest value, 3.8 in float32
    torch.testing.assert_close(actual.double(), expected, atol=5.4e-06, rtol=0)


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
