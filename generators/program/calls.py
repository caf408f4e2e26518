"""Later calls of the module: their differences from the first, and the program that each runs."""

from dataclasses import fields, replace

from generators.errors import add_place, require, require_word
from generators.program.case import AROUND, Case, Input, LaterCall
from generators.program.changes import KINDS, at_state, check_changes, list_changes
from generators.program.numbers import check_varied, set_numbers
from generators.program.ops import OPS
from generators.program.references import list_dims
from generators.program.values import FLOATS
from generators.program.writes import find_owners, is_written
from generators.reasons import Reason

CALL_WORDS: dict[str, tuple[str, ...]] = {
    "values": ("equal", "same", "other"),
    "under": ("", "inference", "training", "no_grad", "inference_mode"),
    "step": ("", "sgd", "adamw"),
    "around": ("", *AROUND),
}
"""The words of fields of later calls, simplest first."""
CHANGES = {
    "sizes": "other sizes",
    "layouts": "other strides",
    "dtype": "another dtype",
    "step": "a step of an optimizer",
    "reseeds": "the random state of the first",
    "numbers": "other numbers",
    "shares": "arguments that share memory",
    "around": "another autocast around the call",
    "apart": "arguments that share no memory",
    "other": "other values",
    "same": "the same tensors",
    "nothing": "nothing changed",
    **{kind: row.effect for kind, row in KINDS.items()},
}
"""Differences of a later call from the first, by field or value of `LaterCall`, in words. Modes are words already."""
_MOST = 8
"""How many calls a case may have."""


def seed_at(case: Case, call: LaterCall) -> int:
    """The offset of the seeds of this call's arguments."""
    return 100 * (1 + case.calls.index(call)) if call.values == "other" else 0


def list_arounds(case: Case) -> list[str]:
    """The autocast around each call, of `AROUND`; "" for none. A call that keeps one has that of the call before."""
    arounds = [case.around]
    for call in case.calls:
        arounds.append(arounds[-1] if call.around == "kept" else (call.around or case.around).removeprefix("off"))
    return arounds


def at_call(case: Case, place: int) -> Case:
    """The program that a call runs, by itself: changes before it are its setup. `place`: 0 is the first call."""
    call = case.calls[place - 1] if place else LaterCall()
    setup, cast_to = at_state(case, place)
    sizes, layouts, seed = dict(call.sizes), dict(call.layouts), seed_at(case, call)
    # A call's dtype applies to all arguments that share the dtype of the first floating argument.
    cast = next((item.dtype for item in case.inputs if item.dtype in FLOATS and not item.parameter), "")

    def change(item: Input) -> Input:
        part = replace(item.part, copied=call.apart) if item.part and (call.shares or call.apart) else item.part
        if item.parameter or item.name in case.parts_of_module:
            owner = part.of if part and not part.copied else item.name
            return replace(item, dtype=cast_to.get(owner, item.dtype), part=part)
        values = item.values if item.part else replace(item.values, seed=item.values.seed + seed)
        dtype = call.dtype if call.dtype and item.dtype == cast else item.dtype
        return replace(item, dtype=dtype, layout=layouts.get(item.name, item.layout), values=values, part=part)

    return replace(
        set_numbers(case, dict(call.numbers)),
        dims=tuple((name, sizes.get(name, size)) for name, size in case.dims),
        inputs=tuple(map(change, case.inputs)),
        mode=call.under if call.under in ("training", "inference") else case.mode,
        calls=(),
        setup=setup,
        around=list_arounds(case)[place],
    )


def check_calls(case: Case) -> None:
    """Raises CaseError if later calls make no sense."""
    with add_place("checkpoint"):
        require(case.checkpoint in ("", "full"), f"checkpoint is {case.checkpoint!r}, expected full", Reason.MALFORMED)
        writes_twice = case.checkpoint and is_written(case)
        require(
            not writes_twice, "a checkpointed case can't write: recomputing would write twice", Reason.RECOMPUTED_WRITE
        )
    if case.calls or case.setup:
        with add_place("calls" if case.calls else "setup"):
            check_changes(case)
    if not case.calls:
        return
    arguments = {item.name for item in case.arguments}
    variable = list_variable(case)
    steps = any(call.step for call in case.calls)
    with add_place("calls"):
        require(len(case.calls) < _MOST, f"{len(case.calls) + 1} calls; at most {_MOST}", Reason.SIZE)
        require(not case.contracts, "a case with later calls has no contracts", Reason.CONTRACTED)
        require(
            not keeps_graph(case),
            "the next call can't differentiate values that a buffer keeps from this call",
            Reason.GRAPH_KEPT,
        )
        require(not steps or _has_parameters(case), "a step without parameters", Reason.NO_PARAMETERS)
        for name in sorted({name for call in case.calls for name, _ in call.sizes}):
            require(name in variable, f"{name} is no dimension that can vary between calls", Reason.VARIES)
        for call, around_before in zip(case.calls, list_arounds(case), strict=False):
            for field, words in (*CALL_WORDS.items(), ("dtype", ("", *FLOATS))):
                require_word(call, field, words, Reason.MALFORMED)
            sharing = {name for item in case.inputs if item.part for name in (item.name, item.part.of)}
            keeps = not (sharing and call.dtype) and sharing.isdisjoint(name for name, _ in call.layouts)
            require(keeps, "arguments that share memory keep their dtype and layout", Reason.MALFORMED)
            named = {name for name, _ in call.layouts}
            require(
                named <= arguments, f"layouts of {', '.join(sorted(named - arguments))}: no argument", Reason.MALFORMED
            )
            plain = not (call.sizes or call.layouts or call.dtype or call.numbers)
            require(
                call.values != "same" or plain,
                "the same arguments have the same sizes, layouts, dtype and numbers",
                Reason.MALFORMED,
            )
            check_varied(case, call)
            if call.around == "kept":
                require(bool(around_before), "around: there is no autocast around the call before", Reason.MALFORMED)
                fits = "uncached" in around_before or not (call.step or call.changes)
                require(fits, "around: a weight changes whose cast is cached", Reason.CAST_KEPT)
            known = call in keep_sharing(case).calls and not (call.shares and call.apart)
            require(
                known, "shares: no argument is copied in the first call; apart: none shares memory", Reason.MALFORMED
            )


def keep_sharing(case: Case) -> Case:
    """The case whose later calls share, or take apart, only what is apart, or shared, in the first call."""
    copied = {item.part.copied for item in case.inputs if item.part}
    calls = (
        replace(one, shares=one.shares and True in copied, apart=one.apart and False in copied) for one in case.calls
    )
    return replace(case, calls=tuple(calls))


def _has_parameters(case: Case) -> bool:
    """Whether the module has parameters, directly or in a layer (a row with a seed)."""
    own = any(item.parameter and not item.is_buffer for item in case.inputs)
    return own or any("seed" in OPS[op.kind].attributes for op in case.ops)


def keeps_graph(case: Case) -> bool:
    """Whether a buffer holds, after a call in training, a value that the gradients of a later call flow through."""
    owners, flowing = find_owners(case), {i.name for i in case.inputs if i.is_differentiated}
    for op in case.ops:
        if op.kind != "detach" and flowing.intersection(op.args):
            flowing |= {op.name, owners[op.name]} if OPS[op.kind].writes else {op.name}
    kept = {item.name for item in case.inputs if item.is_buffer} & flowing
    if not case.training:
        trains_again = [call.under for call in case.calls].count("training") > 1
        kept = kept & _find_needed(case, owners) if trains_again else set()
    return bool(kept)


def _find_needed(case: Case, owners: dict[str, str]) -> set[str]:
    """The names of all values that the returned values depend on."""
    needed = {owners.get(name, name) for name in case.returns} | {*case.returns}
    for op in reversed(case.ops):
        if op.name in needed or (OPS[op.kind].writes and owners[op.name] in needed):
            needed |= {*op.args} | {owners.get(name, name) for name in op.args}
    return needed


def list_differences(case: Case) -> list[str]:
    """The differences of later calls from the first, and the changes before it: keys of `CHANGES`, and modes such as
    `inference`."""
    given = {
        (field.name, value)
        for call in case.calls
        for field in fields(call)
        if (value := getattr(call, field.name)) != field.default and field.name != "changes"
    }
    kinds = {change.kind for change in list_changes(case)}
    return sorted({name if name in CHANGES else value for name, value in given} | kinds)


def describe_differences(case: Case) -> str:
    """The differences of later calls from the first, in words."""
    return " and ".join(CHANGES.get(name, name) for name in list_differences(case) or ["nothing"])


def list_variable(case: Case) -> set[str]:
    """The dimensions that may differ between calls: axes of an argument, and of no parameter."""
    variable = {str(size) for item in case.arguments for size in item.shape if size.is_name}
    return variable - list_dims(tuple(item for item in case.inputs if item.parameter))
