"""Builds a case line by line, or adds lines to it. Every line is type-checked as it is added."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any, Self

from generators.errors import CaseError, require
from generators.program.attention_options import Contract
from generators.program.case import Attr, Case, Input, Op, TensorType, Values, free_name
from generators.program.edits import redirect_reads
from generators.program.indices import find_undefined_writes
from generators.program.ops import OPS, make_op
from generators.program.sizes import Size
from generators.program.type_check import check, infer, prune, types_of
from generators.program.values import category
from generators.program.writes import is_in_place, is_written
from generators.reasons import Reason
from generators.sampling.choices import Choices

_DETACHED_SHARE = 0.6  # how often an outside value is detached: patterns match no mask that needs a gradient


class Builder:
    """A case in the making: dimensions, inputs, operations and contracts so far."""

    def __init__(self, dims: dict[str, int], dtype: str, mode: str, device: str = "cpu") -> None:
        self.mode = mode.partition("_")[0]  # `inference_mode` and `training_on_sum` are given to finished cases
        self.device = device
        self.dims = dims
        self.dtype = dtype
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.types: dict[str, TensorType] = {}
        self.contracts: list[Contract] = []
        self._noted: dict[str, Any] | None = {}
        """Fields of the contract of the attention being written; None if no contract can describe it."""

    @classmethod
    def reopen(cls, case: Case, place: int | None = None) -> Self:
        """A builder with the inputs of the case, its first floating dtype, and its operations before `place`."""
        dtype = next((item.dtype for item in case.inputs if category(item.dtype) == 2), "float32")
        b = cls(dict(case.dims), dtype, case.mode)
        b.inputs, b.types, b.ops = list(case.inputs), types_of(case), list(case.ops[:place])
        return b

    def input(
        self,
        hint: str,
        shape: Sequence[Size | int | str],
        values: Values | None = None,
        dtype: str | None = None,
        layout: str = "contiguous",
        *,
        parameter: bool = False,
        buffer: bool = False,
    ) -> str:
        """Add an input (or parameter, or buffer) and return its name. Its seed is its index among the inputs."""
        name = free_name(hint, self.types)
        values = replace(values or Values(), seed=len(self.inputs))
        sizes, dtype = tuple(Size.of(s) for s in shape), dtype or self.dtype
        item = Input(name, sizes, dtype, values, layout, parameter or buffer, buffer)
        if 0 in item.type.sizes(self.dims):
            # Some distributions need at least one element.
            plain = {0: "ones", 1: "zero_one", 2: "normal"}[category(item.dtype)]
            item = replace(item, values=replace(values, kind=plain, scale=1.0, given=None))
        self.inputs.append(item)
        self.types[name] = item.type
        return name

    def op(self, kind: str, *args: str, to: str = "", **attrs: Attr) -> str:
        """Add an operation and return its value's name, made from `to` or the first argument's name."""
        name = free_name(to or (args[0].rstrip("0123456789") if args else kind), self.types)
        op = make_op(name, kind, args, attrs)
        self.types[name] = infer(op, self.types, self.dims)
        self.ops.append(op)
        return name

    def undo(self, n_inputs: int, n_ops: int) -> None:
        """Take back the inputs and operations after the first `n_inputs` and `n_ops`."""
        for name in [*(item.name for item in self.inputs[n_inputs:]), *(op.name for op in self.ops[n_ops:])]:
            del self.types[name]
        del self.inputs[n_inputs:], self.ops[n_ops:]

    def freeze(self, c: Choices, name: str) -> str:
        """An outside value such as a mask, mostly detached in training: few models learn such values."""
        differentiable = self.mode == "training" and self.is_float(name)
        return self.op("detach", name) if differentiable and c.chance(_DETACHED_SHARE) else name

    def shape(self, name: str) -> tuple[Size, ...]:
        return self.types[name].shape

    def rank(self, name: str) -> int:
        return self.types[name].rank

    def dtype_of(self, name: str) -> str:
        return self.types[name].dtype

    def is_float(self, name: str) -> bool:
        return category(self.dtype_of(name)) == 2

    def list_floats(self, *, parameters: bool = False) -> list[str]:
        """The floating inputs and results that have an axis."""
        named = [*(i.name for i in self.inputs if parameters or not i.parameter), *(op.name for op in self.ops)]
        return [name for name in named if self.is_float(name) and self.rank(name)]

    def size(self, size: Size) -> int:
        return size.value(self.dims)

    def note_contract(self, **fields: Any) -> None:
        """Note fields of the contract for the step just written."""
        self._noted = None if self._noted is None else {**self._noted, **fields}

    def drop_contract_unless(self, fact: bool) -> None:
        self._noted = self._noted if fact else None

    def contract_field(self, field: str) -> Any:
        return (self._noted or {}).get(field)

    def end_attention(self, q: str, k: str, v: str, output: str, *, bias: str = "", **fields: Any) -> None:
        """Add the noted contract of an attention, if it describes all steps.

        `bias`: a value that was added to the scores before the mask. A contract has a single bias, added after the
        mask, so filled scores must stay hidden with the bias added.
        """
        noted, self._noted = self._noted, {}
        if noted is None or (bias and ("bias" in noted or noted.get("fill", -inf) > -inf)):
            return
        fields |= noted | ({"bias": bias} if bias else {})
        self.contracts.append(Contract(q, k, v, output, "bhsd" if self.rank(output) == 4 else "bsd", **fields))

    def may_overwrite(self, name: str) -> bool:
        """Whether a value is a new tensor that nothing has read yet, so that a step may work in place."""
        made = next((op for op in self.ops if op.name == name), None)
        return made is not None and OPS[made.kind].owns_memory and all(name not in op.args for op in self.ops)

    def case(self, returns: Sequence[str], *, dynamic: bool) -> Case:
        """The finished, pruned and checked case; a value that a later step overwrote is not returned."""
        overwritten = {op.args[0] for op in self.ops if is_in_place(op)}
        kept = tuple(dict.fromkeys(r for r in returns if r not in overwritten))
        dims, contracts = tuple(self.dims.items()), tuple(self.contracts)
        case = Case(dims, tuple(self.inputs), tuple(self.ops), kept, self.mode, dynamic)
        case = prune(case if is_written(case) else replace(case, contracts=contracts))
        check(case)
        return case

    def close(self, case: Case, returns: Iterable[str], later: Sequence[Op] = ()) -> Case:
        """A reopened case with the inputs and operations of the builder, then `later`, as far as results need them."""
        results = tuple(dict.fromkeys(returns))
        return prune(replace(case, inputs=tuple(self.inputs), ops=(*self.ops, *later), returns=results))


def draw_valid(case: Case, draw: Callable[[Case], Case], tries: int = 1) -> Case:
    """The first valid case in `tries` draws, else the unchanged case. `draw` may raise CaseError."""
    for _ in range(tries):
        with suppress(CaseError):
            changed = draw(case)
            check(changed)
            return changed
    return case


Writer = Callable[[Builder, Choices, str, Sequence[str]], str]
"""Adds operations on a value, beside all floating values. Returns the name of the result; raises CaseError."""
_READ_SHARE = 0.6  # the share of results that later operations read in the value's place, where they fit
_RETURNED_SHARE = 0.3  # the share of results that a case returns though later operations read them


def insert(case: Case, c: Choices, write: Writer, *, alone: float = 0.0, ends: bool = False) -> Case:
    """The case with what `write` adds on a random floating value. Raises CaseError if that does not fit.

    alone: how likely it takes the place of all other operations: then fewer compile and have to shrink
    ends: whether all added values that nothing reads are returned, and not the result alone
    """
    is_alone = c.chance(alone)
    place = 0 if is_alone else c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    before, floats = len(b.ops), b.list_floats()
    require(bool(floats), "there is nothing to compute with")
    value = c.pick(floats)
    made = write(b, c, value, floats)
    is_alone = is_alone and (b.is_float(made) or not case.may_train)
    later = () if is_alone else case.ops[place:]
    alike = b.types[made].sizes(b.dims) == b.types[value].sizes(b.dims) and b.dtype_of(made) == b.dtype_of(value)
    if alike and c.chance(_READ_SHARE):
        later = tuple(redirect_reads(op, {value: made}) for op in later)
    read = {name for op in (*b.ops[before:], *later) for name in op.args}
    returns = [op.name for op in b.ops[before:] if ends and op.name not in read]
    if made not in read or c.chance(_RETURNED_SHARE):
        returns.append(made)
    changed = b.close(replace(case, contracts=()), (*(() if is_alone else case.returns), *returns), later)
    require(any(op.name == made for op in changed.ops), "nothing reads the result", Reason.UNREAD)
    require(not find_undefined_writes(changed, types_of(changed)), "writes twice into one place", Reason.WRITTEN_TWICE)
    return changed
