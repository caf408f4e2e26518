"""[DTensor] torch.compile(dynamic=True) of einsum, or of a product of 4 axes, in training, one factor split: RecursionError

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/einsum-of-shards-compiled.case.yaml --subject aot_eager_sharded
"""
import sys, tempfile, traceback

try:
    import torch.distributed.tensor
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

B, H, S, T, D = 2, 1, 1, 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, weights, v):
        out = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return out


def inputs():
    return [
        torch.randn((B, H, S, T), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
    ]


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


def show(mesh):
    placements = [Replicate(), Shard(0)]
    def run(call, whole=False):
        given = inputs() if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
        given[0].requires_grad_()
        given[1].requires_grad_()
        out = gather(call(*given))
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape).to(out))

    whole = Module()
    run(whole, whole=True)
    module = Module()
    compiled = torch.compile(module, dynamic=True, backend='aot_eager')
    run(compiled)


# The program ends here. The rest runs it on two ranks, processes that talk by gloo.
def be_rank(rank, folder):
    sys.stdout, mesh = open(f"{folder}/{rank}", "w", buffering=1), None
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        show(mesh)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        sys.exit(1 if mesh is not None and "RecursionError: maximum recursion depth exceeded" in traceback.format_exc() else 125)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(be_rank, (folder,), nprocs=2)
        except torch.multiprocessing.ProcessExitedException as first:
            print(open(f"{folder}/{first.error_index}").read(), file=sys.stderr)
            sys.exit(first.exit_code)
