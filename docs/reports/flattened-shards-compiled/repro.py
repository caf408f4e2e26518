"""[DTensor] torch.compile of a view that flattens a split axis behind another axis: ValueError, DTensorSpec doesn't allow specify shard_order

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/flattened-shards-compiled.case.yaml --subject aot_eager_sharded
"""
import sys, tempfile, traceback

try:
    import torch.distributed.tensor
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
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


def show(mesh):
    torch.set_grad_enabled(False)
    whole = Module().eval()
    whole(*inputs())
    module = Module().eval()
    given = [distribute_tensor(x, mesh, [Shard(1)]) for x in inputs()]
    compiled = torch.compile(module, dynamic=False, backend='aot_eager')
    compiled(*given).full_tensor()


# The program ends here. The rest runs it on two ranks, processes that talk by gloo.
def be_rank(rank, folder):
    sys.stdout, mesh = open(f"{folder}/{rank}", "w", buffering=1), None
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        show(mesh)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        sys.exit(1 if mesh is not None and "ValueError: DTensorSpec doesn't allow specify" in traceback.format_exc() else 125)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(be_rank, (folder,), nprocs=2)
        except torch.multiprocessing.ProcessExitedException as first:
            print(open(f"{folder}/{first.error_index}").read(), file=sys.stderr)
            sys.exit(first.exit_code)
