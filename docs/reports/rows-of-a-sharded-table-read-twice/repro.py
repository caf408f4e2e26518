"""[DTensor] an embedding from a table whose rows are split, read twice: AssertionError

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/rows-of-a-sharded-table-read-twice.case.yaml --subject sharded
"""
import sys, tempfile, traceback

try:
    import torch.distributed.tensor
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
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


def show(mesh):
    torch.set_grad_enabled(False)
    whole = Module().eval()
    whole(*inputs())
    module = Module().eval()
    module.table = nn.Parameter(distribute_tensor(module.table, mesh, [Shard(0)]))
    given = [distribute_tensor(x, mesh, [Replicate()]) for x in inputs()]
    gather(module(*given))


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
