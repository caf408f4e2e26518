"""Parts of a script in which several ranks run a program with DTensors."""

import re
from dataclasses import replace

from generators.program.case import Case, Input
from generators.program.edits import map_inputs
from generators.program.emit import source

_MESHES = {
    False: 'mesh = init_device_mesh("cpu", (2,))  # under torchrun --nproc-per-node 2',
    True: 'mesh = init_device_mesh("cpu", (2, 2))  # under torchrun --nproc-per-node 4',
}
_NAMES = ("DTensor", "Replicate", "Shard", "distribute_tensor")
_MAKES_TENSORS = re.compile(r"torch\.(?:arange|empty|eye|full|linspace|ones|tensor|zeros)\(")
_MIXED = "DTensor._op_dispatcher._allow_implicit_replication = True  # forward makes tensors of its own"

GATHER = """\
def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)"""


def spell_program(case: Case) -> str:
    """The module and its inputs, without the axes that are split: placements say them."""
    return source(map_inputs(case, lambda item: replace(item, shard=None, second_shard=None))).strip()


def spell_split(case: Case, given: str) -> str:
    """The expression of DTensors for whole inputs."""
    placements = {_spell_placement(case, item) for item in case.arguments}
    if len(placements) > 1:
        return f"[distribute_tensor(x, mesh, p) for x, p in zip({given}, placements)]"
    return f"[distribute_tensor(x, mesh, {placements.pop()}) for x in {given}]"


def list_setup(case: Case) -> list[str]:
    """Statements before all others."""
    placements = [_spell_placement(case, item) for item in case.arguments]
    lines = [_MESHES[case.has_mesh], *[f"placements = [{', '.join(placements)}]"] * (len({*placements}) > 1)]
    forward = source(case).partition("def forward(")[2].partition("\n\n\n")[0]
    return lines + [_MIXED] * bool(_MAKES_TENSORS.search(forward))


def list_preparation(case: Case) -> list[str]:
    """Statements that make DTensors of the parameters and buffers of `module`."""
    lines = []
    for item in case.inputs:
        if item.parameter:
            made = f"distribute_tensor(module.{item.name}, mesh, {_spell_placement(case, item)})"
            constant = "" if item.requires_grad else ", requires_grad=False"
            lines += [f"module.{item.name} = {made if item.is_buffer else f'nn.Parameter({made}{constant})'}"]
    return lines


def list_imports(text: str) -> list[str]:
    """The imports that `text` needs."""
    used = ", ".join(name for name in _NAMES if re.search(rf"\b{name}\b", text))
    mesh = "from torch.distributed.device_mesh import init_device_mesh"
    return [mesh, f"from torch.distributed.tensor import {used}"]


def spell_error(failure: object) -> str:
    """The beginning of an exception's text, without numbers. DTensor refuses programs by the same exceptions."""
    first = re.split(r"[^\w ']", getattr(failure, "text", ""), maxsplit=1)[0]
    return " ".join(word for word in first.split()[:5] if not any(map(str.isdigit, word)))


def _spell_placement(case: Case, item: Input) -> str:
    axes = item.shards if case.has_mesh else item.shards[:1]
    return f"[{', '.join('Replicate()' if axis is None else f'Shard({axis})' for axis in axes)}]"
