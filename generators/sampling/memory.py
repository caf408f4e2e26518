"""Adds arguments that share memory, with each other or the module."""

from dataclasses import replace

from generators.errors import require
from generators.program.case import Case, Input, LaterCall, SharedSlice, free_name
from generators.program.sizes import Size
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.writes import draw_slice, draw_view, draw_write

_COPIED_SHARE = 0.25  # the share of shared arguments that are apart in the first call
_APART_SHARE = 0.15  # the share of uncopied shared arguments that are apart in a later call
_OF_MODULE_SHARE = 0.4  # the share of shared arguments that are parts of a parameter or a buffer, where there are any
_VIEWED_SHARE = 0.25  # the share of results that are views: view-of-shared-arguments hides other faults of these
_WHOLE_SHARE = 0.2  # the share of shared arguments that are one tensor, passed twice


def share_arguments(case: Case, c: Choices) -> Case:
    """The case with an argument that is a part of another input, and a write into one. Raises CaseError."""
    place = c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    owner = _pick_owner(case, b, c)
    part, shape = SharedSlice(owner.name), owner.shape
    if not c.chance(_WHOLE_SHARE):
        drawn = draw_slice(b, c, owner.name)
        part = SharedSlice(owner.name, drawn["dim"], Size.of(drawn["start"]))
        shape = (*shape[: part.dim], drawn["stop"] - part.start, *shape[part.dim + 1 :])
    part = replace(part, copied=c.chance(_COPIED_SHARE))
    tail = Input(free_name("tail", b.types), shape, owner.dtype, requires_grad=not case.training, part=part)
    # The gradient of a slice of a parameter is that of the parameter, and torch writes into neither.
    is_read = case.training and owner.parameter and owner.is_differentiated
    fixed = replace(owner, requires_grad=False) if case.training and not owner.parameter else owner
    b.inputs = [*(fixed if item is owner else item for item in b.inputs), tail]
    b.types[tail.name] = tail.type
    target, seen = c.pick(((owner.name, tail.name), (tail.name, owner.name), (tail.name, tail.name)))
    for _ in range(c.draw({0: 4.0, 1: 4.0, 2: 1.0})):
        target = draw_view(b, c, target)
    if not is_read:
        draw_write(b, c, target, b.list_floats())
    read = draw_view(b, c, seen) if c.chance(_VIEWED_SHARE) else b.op("neg", seen, to="read")
    returns = [*case.returns, read, *([b.op("neg", owner.name, to="whole")] if c.chance(0.4) else [])]
    is_apart = not part.copied and c.chance(_APART_SHARE)
    later = (LaterCall(shares=part.copied, apart=is_apart),) if part.copied or is_apart else ()
    calls = (*case.calls, *later)
    return b.close(replace(case, contracts=(), calls=calls), returns, case.ops[place:])


def _pick_owner(case: Case, b: Builder, c: Choices) -> Input:
    """An argument, a parameter, or a buffer, which is added if the module has neither."""
    owners = [item for item in case.inputs if b.is_float(item.name) and item.shape and item.part is None]
    require(bool(owners), "no input can be shared", Reason.NOTHING)
    of_module = c.chance(_OF_MODULE_SHARE)
    fitting = [item for item in owners if item.parameter is of_module]
    if not fitting and of_module:
        like = c.pick(owners)
        b.input("state", like.shape, dtype=like.dtype, buffer=True)
        return b.inputs[-1]
    return c.pick(fitting or owners)
