"""Edits of a program, which the shrinker's passes, variants and experiments use."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from generators.errors import CaseError, accepts
from generators.program.attention_options import Contract
from generators.program.case import Attr, Case, Input, Number, NumberValue, Op, TensorType, Values, free_name
from generators.program.contracts import check_contract, list_described_ops
from generators.program.given import check_given, cut
from generators.program.numbers import compute, name_use
from generators.program.ops import make_op
from generators.program.references import map_references, rename
from generators.program.sizes import Size
from generators.program.type_check import RESERVED, attributes, check, list_own_names, prune, types_of
from generators.program.values import category

T = TypeVar("T")


def prune_if_valid(case: Case) -> Case | None:
    """The case without unneeded operations, inputs and dimensions, and without contracts that no longer fit.

    None if it is not a well-typed program.
    """
    try:
        smaller = fit_values(prune(case))
        types = check(replace(smaller, contracts=()))
    except CaseError:
        return None
    return replace(smaller, contracts=tuple(c for c in smaller.contracts if accepts(check_contract, c, smaller, types)))


def fit_values(case: Case) -> Case:
    """The case in which given values that no longer fit their input are cut, or left for what they resemble."""

    def fit(item: Input) -> Input:
        given, sizes = item.values.given, item.type.sizes(case.sizes)
        if given is None or not accepts(check_given, given, sizes, item.dtype):
            return describe_values(item)
        return replace(item, values=replace(item.values, given=cut(given, sizes)))

    return map_inputs(case, fit) if has_given(case) else case


def has_given(case: Case) -> bool:
    """Whether an input has given values."""
    return any(item.values.given is not None for item in case.inputs)


def describe_values(item: Input) -> Input:
    """The input with the distribution that its given values resemble, in place of them."""
    return item if item.values.given is None else replace(item, values=replace(item.values, given=None))


def substitute(case: Case, names: Mapping[str, str]) -> Case:
    """The case with values read under other names. A contract that describes a replaced value is dropped."""
    ops = tuple(redirect_reads(op, names) for op in case.ops)
    returns = tuple(dict.fromkeys(names.get(r, r) for r in case.returns))
    contracts = rename(list_unaffected(case, names), names)
    regions = tuple(replace(one, carries=rename(one.carries, names)) for one in case.regions)
    return replace(case, ops=ops, returns=returns, contracts=contracts, regions=regions)


def skip_op(case: Case, op: Op) -> Case:
    """The case without an operation. The operation's first argument is read in place of its result."""
    skipped = substitute(case, {op.name: op.args[0]})
    return replace(skipped, ops=tuple(other for other in skipped.ops if other.name != op.name))


def redirect_reads(op: Op, names: Mapping[str, str]) -> Op:
    """The operation that reads values under other names."""
    return replace(op, args=tuple(names.get(arg, arg) for arg in op.args))


def list_unaffected(case: Case, names: Iterable[str]) -> tuple[Contract, ...]:
    """The contracts that stay valid if the named operations change: they describe none of them."""
    return tuple(c for c in case.contracts if list_described_ops(case, c).isdisjoint(names))


def detach_inputs(case: Case, names: Iterable[str]) -> Case:
    """The case with these inputs detached. Inputs that are detached already are unchanged."""
    detached = {op.args for op in case.ops if op.kind == "detach"}
    for name in (name for name in names if (name,) not in detached):
        fixed = make_op(make_name(case, "fixed"), "detach", (name,), {})
        case = substitute(case, {name: fixed.name})
        case = replace(case, ops=(fixed, *case.ops))
    return case


def replace_op(case: Case, op: Op, new: Op) -> Case:
    """The case with one operation replaced. A contract that describes it is dropped: its meaning may have changed."""
    return replace(case, ops=tuple(new if o is op else o for o in case.ops), contracts=list_unaffected(case, [op.name]))


def change_attribute(case: Case, op: Op, name: str, value: Attr) -> Case:
    """The case with another attribute of an operation, as `replace_op`."""
    return replace_op(case, op, make_op(op.name, op.kind, op.args, {**dict(op.attrs), name: value}))


def replace_inputs(case: Case, new: Mapping[Input, Input]) -> Case:
    return map_inputs(case, lambda item: new.get(item, item))


def swap(items: tuple[T, ...], at: int, *new: T) -> tuple[T, ...]:
    """The items with these in the place of item number `at`; with none, it is dropped."""
    return (*items[:at], *new, *items[at + 1 :])


def map_inputs(case: Case, change: Callable[[Input], Input]) -> Case:
    return replace(case, inputs=tuple(map(change, case.inputs)))


def map_attributes(case: Case, change: Callable[[str, Attr], Attr]) -> Case:
    """The case with `change` applied to the name and value of every attribute, defaults among them."""

    def change_op(op: Op) -> Op:
        return make_op(op.name, op.kind, op.args, {name: change(name, v) for name, v in attributes(op).items()})

    return replace(case, ops=tuple(map(change_op, case.ops)))


def drop_first_axis(item: Input) -> Input:
    """The input without its first axis. If that axis is split over ranks, it is split no more."""
    first, second = (shard - 1 if shard else None for shard in item.shards)
    return replace(item, shape=item.shape[1:], shard=first, second_shard=second)


def make_contiguous(case: Case) -> Case:
    """The case with every input contiguous, and with memory of its own."""
    return map_inputs(case, lambda item: replace(item, layout="contiguous"))


def change_dtype(case: Case, old: Collection[str], new: str) -> Case:
    """The case with `new` for the dtypes `old`, of inputs and in attributes."""
    changed = map_inputs(case, lambda item: replace(item, dtype=new) if item.dtype in old else item)
    return map_attributes(changed, lambda name, value: new if name == "dtype" and value in old else value)


def input_like(name: str, kind: TensorType, seed: int) -> Input:
    name_of_values = ("random", "zero_one", "normal", "normal")[category(kind.dtype)]
    return Input(name, kind.shape, kind.dtype, Values(name_of_values, seed, 0.5 if kind.dtype == "bool" else 1.0))


def resize(case: Case, sizes: Mapping[str, int]) -> Case | None:
    """The case with new sizes. If a fused call has its default scale, the contract's scale is updated."""
    case = replace(case, dims=tuple(sizes.items()))
    unscaled = {op.name: op.args[0] for op in case.ops if op.kind == "sdpa" and op.attr("scale") is None}
    if not unscaled.keys() & {c.output for c in case.contracts}:
        return prune_if_valid(case)
    try:
        types = types_of(case)
    except CaseError:
        return None
    scales = {out: 1 / math.sqrt(max(1, types[q].shape[-1].value(sizes))) for out, q in unscaled.items()}
    contracts = (replace(c, scale=scales.get(c.output, c.scale)) for c in case.contracts)
    return prune_if_valid(replace(case, contracts=tuple(contracts)))


def map_sizes(case: Case, change: Callable[[Size], Size]) -> Case:
    """The case with `change` applied to every size; `prune` removes dimensions that are no longer named."""
    ops = map_references(case.ops, size=change)
    return replace(case, ops=ops, inputs=map_references(case.inputs, size=change))


def make_constant(case: Case, named: str) -> Case:
    """The case whose program has the first value of what numbers are for, by a name of `list_uses`."""
    uses = {number.name: tuple(use for use in number.uses if name_use(case, use) != named) for number in case.numbers}
    return replace(case, numbers=tuple(replace(one, uses=uses[one.name]) for one in case.numbers if uses[one.name]))


def compute_before(case: Case, formula: str) -> Case:
    """The case whose operations get the results of a formula as numbers of their own. Raises CaseError if Python
    computes none."""
    for at, number in enumerate(case.numbers):
        found = tuple(replace(use, formula="") for use in number.uses if use.formula == formula)
        rest = tuple(use for use in number.uses if use.formula != formula)
        if not found:
            continue
        name = make_name(case, f"{number.name}_{formula}") if rest else number.name
        kept = (replace(number, uses=rest),) if rest else ()
        numbers = swap(case.numbers, at, *kept, Number(name, compute(number.value, formula), found))
        calls = (replace(call, numbers=_compute_too(call.numbers, number.name, name, formula)) for call in case.calls)
        return compute_before(replace(case, numbers=numbers, calls=tuple(calls)), formula)
    return case


def _compute_too(
    given: tuple[tuple[str, NumberValue], ...], number: str, name: str, formula: str
) -> tuple[tuple[str, NumberValue], ...]:
    """The numbers of a call with `name`, which has what the formula computes of `number`."""
    values = dict(given)
    return tuple((values | {name: compute(values[number], formula)}).items()) if number in values else given


def make_name(case: Case, hint: str, taken: Iterable[str] = ()) -> str:
    """A name for a new value, made from `hint`, that neither the case nor `taken` has."""
    used = {own for _, own in list_own_names(case)} | {*taken, *RESERVED}
    return free_name(hint.lower().rstrip("0123456789") or "x", used)
