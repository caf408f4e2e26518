"""Adds changes of the module to a case: between its calls, or before the first."""

from collections.abc import Collection
from dataclasses import replace

from generators.errors import require
from generators.program.case import Case, Change, LaterCall, Op
from generators.program.changes import KINDS, list_changeable
from generators.program.edits import swap
from generators.program.ops import make_op
from generators.program.type_check import prune, types_of
from generators.sampling.builder import draw_valid
from generators.sampling.choices import Choices

_LAYERS_SHARE = 0.35
_ENSEMBLE_SHARE = 0.1  # of layers; the ensemble has the layer as a member, whose result it gives
_LAYERS = {"linear": "Linear", "layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}


def add_change(case: Case, c: Choices, kinds: Collection[str] = KINDS) -> Case:
    """The case with a change of one of these kinds before a call. Some cases also get layers, which changes may be of.
    Raises CaseError."""
    changed = replace(case, contracts=(), dynamic=False)
    changed = add_layers(changed, c) if c.chance(_LAYERS_SHARE) else changed
    change = _draw(changed, c, kinds)
    # A hook is made before it is removed.
    at = len(case.calls) - 1 if change.kind == "unhooked" else c.below(1 + len(case.calls)) - 1
    if at < 0:
        return replace(changed, setup=(*changed.setup, change))
    call: LaterCall = changed.calls[at]
    return replace(changed, calls=swap(changed.calls, at, replace(call, changes=(*call.changes, change))))


def _draw(case: Case, c: Choices, kinds: Collection[str]) -> Change:
    """Raises CaseError if no change fits."""
    targets = {name: found for name, found in list_changeable(case).items() if found}
    weights = {
        name: row.weight
        for name, row in KINDS.items()
        if name in kinds and (row.target in targets or row.target == "call") and (case.may_train or not row.training)
    }
    require(bool(weights), "no change fits")
    row = KINDS[kind := c.draw(weights)]
    of = c.pick(targets[row.target]) if row.target in targets else ""
    rank = next((len(item.shape) for item in case.arguments if item.name == of), 1)
    to = c.pick(targets.get(row.to, [""]))
    return Change(kind, of, to, c.below(rank) if row.target == "argument" else 0)


def add_layers(case: Case, c: Choices) -> Case:
    """The case with layers in the place of linear functions and norms of parameters, if that is valid."""
    types, parameters = types_of(case), {item.name for item in case.inputs if item.parameter}

    def convert(op: Op) -> Op:
        if op.kind not in _LAYERS or not parameters.issuperset(op.args[1:]) or op.attr("last"):
            return op
        dtype = types[op.args[0]].dtype
        out = types[op.name].shape[-1] if op.kind == "linear" else None
        bias = len(op.args) == 3
        attrs = {"of": _LAYERS[op.kind], "out": out, "bias": bias, "dtype": dtype, "seed": c.below(100)}
        form = "ensemble" if c.chance(_ENSEMBLE_SHARE) else "called"
        return make_op(op.name, "layer", op.args[:1], {**attrs, "form": form})

    return draw_valid(case, lambda _: prune(replace(case, ops=tuple(map(convert, case.ops)), contracts=())))
