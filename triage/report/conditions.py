"""Finds the conditions of a failure: one property of the case varies at a time, and the rule that explains the outcomes
is searched for."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fuzz.attribution.decide import list_edits
from fuzz.attribution.edits import CALLS_APART, edit
from fuzz.bug_identity import attention_patterns, compare_outcome
from fuzz.experiments import EXPERIMENTS, NARROWER, Outcome
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.render import name_ordinal
from fuzz.protocol.rewrites import DROPPED
from generators.errors import CaseError
from generators.program import edits
from generators.program.calls import at_call
from generators.program.case import Attr, Case, Input, NumberValue, Op, Values
from generators.program.edits import prune_if_valid
from generators.program.kept_places import is_added
from generators.program.numbers import set_numbers, spell_numbers
from generators.program.ops import OPS, make_op
from generators.program.ops.spec import Kind
from generators.program.type_check import attributes, types_of
from generators.program.values import DISTRIBUTIONS, FLOATS, INDICES, LAYOUTS
from triage.report.rules import (
    HELD,
    WORDS,
    ChoiceRule,
    Condition,
    ConditionRule,
    EditRule,
    SizeRule,
    TraitRule,
    list_size_rules,
    list_traits,
)

MOST_VALUES = 16
"""The most values that are tried of a property."""
_STEP = 32
"""By which sizes grow together: it keeps their remainders."""
_SIZES = (1, 64, 3, 128)
"""Sizes that are tried first, beside the neighbours: degenerate, odd, and a multiple of every divisor."""
_NUMBERS = (1.0, 2.0, -1.0, 0.0, 0.5, 0.25, -1e4, float("-inf"))
_SEEDS = range(1, 4)
"""Added to the seeds of a program that passes, if the failure is one of values: it must pass with other numbers too."""
_VARIED = (CALLS_APART, DROPPED, *NARROWER[EAGER], "wide_integers", "offset_given")
"""Edits of attributes, dtypes, layouts and calls, which are varied by themselves."""
_INFERENCE = "inference"
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

Probe = Callable[[Case], SubjectResult]
"""Runs a case under the subject of the failure."""


@dataclass(slots=True)
class _Property:
    """A property of the case, and the outcomes so far."""

    subject: str
    now: Any
    values: Iterable[Any]
    """To try, the most telling first."""
    make: Callable[[Any], Case | None]
    """The case with another value; None if it would be invalid."""
    is_size: bool = False
    is_edit: bool = False  # True is the case with an edit, False the case as it is
    is_cut: bool = False  # time ran out before all values were tried
    outcomes: list[tuple[Any, bool]] = field(default_factory=list)  # whether a value fails

    def __post_init__(self) -> None:
        self.outcomes.append((self.now, True))

    @property
    def flips(self) -> bool:
        return not all(fails for _, fails in self.outcomes)

    def explains(self, rule: ConditionRule) -> bool:
        """Whether a rule agrees with all outcomes."""
        return all(rule.holds(value) in (fails, None) for value, fails in self.outcomes)

    def state(self, rule: ConditionRule, *, is_exact: bool) -> Condition:
        return Condition(
            self.subject,
            rule,
            tuple(value for value, fails in self.outcomes if fails),
            tuple(value for value, fails in self.outcomes if not fails),
            is_exact,
        )


def find_conditions(
    case: Case,
    result: SubjectResult,
    judge: Probe,
    seconds: float = 60.0,
    *,
    rewrite: bool = False,
    sizes_only: bool = False,
) -> list[Condition]:
    """The conditions of a failure. A property whose change never mends it is none.

    Tries for about `seconds`. `result`: the result of `judge` for the case itself. `rewrite`: an attention rewrite is
    at fault, so a result counts only if such a rewrite was applied.
    """
    deadline = time.monotonic() + seconds
    # A replacement that raises while it is traced is not applied.
    rewrite = rewrite and bool(attention_patterns(result.applied_rewrites))

    def fails(other: Case | None) -> bool | None:
        """Whether the case fails alike; None if it fails otherwise, can't be judged, or time has run out."""
        if other is None or other.canonical() == case.canonical() or time.monotonic() > deadline:
            return None
        found = judge(other)
        applies = not rewrite or bool(attention_patterns(found.applied_rewrites))
        outcome = compare_outcome(found, result, applies=applies)
        return {Outcome.FAILS_ALIKE: True, Outcome.PASSES: False}.get(outcome)

    def attempt(one: _Property, value: Any) -> bool:
        one.is_cut |= time.monotonic() > deadline
        other = one.make(value)
        outcome = fails(other)
        is_of_values = result.verdict.has_wrong_numbers or result.verdict is Verdict.EAGER_SUSPECT
        if outcome is False and is_of_values and other is not None:
            outcome = any(fails(_change_seeds(other, seed)) for seed in _SEEDS)
        one.outcomes += [] if outcome is None else [(value, outcome)]
        return outcome is not None

    properties = list_properties(case, sizes_only=sizes_only)
    if result.verdict is Verdict.WRONG_GRADIENT or (result.value and result.value.is_gradient):
        properties = [one for one in properties if one.subject != _INFERENCE]  # which has no gradient to be wrong
    for one, value in _take_turns(properties):
        attempt(one, value)
    found: dict[str, Condition] = {}
    for one in properties:
        if one.flips:
            rule, is_exact = _narrow_size(one, attempt) if one.is_size else (_find_rule(one), not one.is_cut)
            # Size 1 makes most programs right.
            if rule is not None and (sizes_only or rule != SizeRule(above=1)):
                found[one.subject] = one.state(rule, is_exact=is_exact)
    return _relate(case, found, fails)


def _take_turns(properties: Sequence[_Property]) -> Iterator[tuple[_Property, Any]]:
    """The values of all properties. Properties take turns, because time may run out."""
    values = [[(one, value) for value in itertools.islice(one.values, MOST_VALUES)] for one in properties]
    return (pair for turn in itertools.zip_longest(*values) for pair in turn if pair is not None)


def _change_seeds(case: Case, added: int) -> Case:
    """The case with other random numbers."""
    return edits.map_inputs(
        case, lambda i: replace(i, values=replace(i.values, seed=i.values.seed + added, given=None))
    )


def _find_rule(one: _Property) -> ConditionRule | None:
    failing = [value for value, fails in one.outcomes if fails]
    passing = [value for value, fails in one.outcomes if not fails]
    if one.is_edit:
        return EditRule()
    choices: list[ConditionRule] = [ChoiceRule((one.now,)), *map(TraitRule, list_traits(one.now))]
    is_short = len(failing) <= len(passing)
    choices += [ChoiceRule(tuple(failing))] if is_short else [ChoiceRule(tuple(passing), excluded=True)]
    return next((rule for rule in choices if one.explains(rule)), None)


def _narrow_size(one: _Property, attempt: Callable[[_Property, Any], bool]) -> tuple[SizeRule | None, bool]:
    """The simplest rule that explains the outcomes, and whether no other as simple does.

    Sizes that tell the rules of one complexity apart are tried.
    """
    last, untold = max(*_SIZES, one.now + _STEP), set[int]()
    for families in list_size_rules(last):
        while True:
            left = [kept for rules in families if (kept := [rule for rule in rules if one.explains(rule)])]
            tried = {value for value, _ in one.outcomes} | untold
            size = _find_telling(left, [size for size in range(1, last + 1) if size not in tried])
            if not left or size is None or len(tried) >= MOST_VALUES:
                break
            if not attempt(one, size):
                untold.add(size)
        if left:
            return left[0][0], size is None and not untold
    return None, True


def _find_telling(families: Sequence[Sequence[SizeRule]], sizes: Iterable[int]) -> int | None:
    """The size that splits the families of rules most evenly; None if all rules agree."""

    def share(size: int) -> float:
        return sum(sum(rule.holds(size) for rule in rules) / len(rules) for rules in families)

    shares = {size: share(size) for size in sizes}
    telling = [size for size, part in shares.items() if 0 < part < len(families)]
    return min(telling, key=lambda size: (abs(shares[size] - len(families) / 2), size), default=None)


def _relate(case: Case, found: Mapping[str, Condition], fails: Callable[[Case | None], bool | None]) -> list[Condition]:
    """The conditions, in which a relation between two sizes takes the place of bounds that it explains: each size is
    bounded next to the other, and both may grow together. Bounds that it does not explain stay."""
    told, rest, sizes = dict(found), list[Condition](), case.sizes
    for one, two in itertools.combinations([name for name in case.sizes if name in found], 2):
        rule, other = (told[name].rule if name in told else None for name in (one, two))
        if not isinstance(rule, SizeRule) or not isinstance(other, SizeRule):
            continue
        if any(known.divisor > 1 or known.other for known in (rule, other)):
            continue
        above = rule.above if _meet(rule.above, sizes[two]) and _meet(other.below, sizes[one]) else None
        below = rule.below if _meet(rule.below, sizes[two]) and _meet(other.above, sizes[one]) else None
        grown = {**sizes, one: sizes[one] + _STEP, two: sizes[two] + _STEP}
        if above is below is None or not fails(_resize(case, grown)):
            continue
        left = {one: SizeRule(None if above else rule.above, None if below else rule.below)}
        left[two] = SizeRule(None if below else other.above, None if above else other.below)
        rest += [told[name].restate(part, part) for name, part in left.items() if part != SizeRule()]
        condition, (low, high) = told[one], (None if bound is None else bound - sizes[two] for bound in (above, below))
        told[one] = condition.restate(SizeRule(low, high, other=two), SizeRule(above, below))
        del told[two]
    return [*told.values(), *rest]


def _meet(bound: int | None, size: int) -> bool:
    return bound is not None and abs(bound - size) <= 1


def _resize(case: Case, sizes: Mapping[str, int]) -> Case | None:
    """The case with other sizes; None if that changes its contracts."""
    other = edits.resize(case, sizes)
    return other if other is not None and len(other.contracts) == len(case.contracts) else None


def list_properties(case: Case, *, sizes_only: bool = False) -> list[_Property]:
    """All properties that are varied."""
    ways = _list_attributes, _list_numbers, _list_forms, _list_edits, _list_sizes
    return [one for way in (ways[-1:] if sizes_only else ways) for one in way(case)]


def _list_sizes(case: Case) -> Iterator[_Property]:
    def resize(name: str, size: int) -> Case | None:
        return _resize(case, {**case.sizes, name: size})

    for name, size in case.dims:
        sizes = [other for other in dict.fromkeys((size + 1, size - 1, *_SIZES)) if 0 < other != size]
        yield _Property(name, size, sizes, partial(resize, name), is_size=True)


def _list_attributes(case: Case) -> Iterator[_Property]:
    types, kinds = types_of(case), [op.kind for op in case.ops]

    def change(op: Op, name: str, value: Attr) -> Case | None:
        new = make_op(op.name, op.kind, op.args, {**dict(op.attrs), name: value})
        attrs, rank = attributes(new), types[op.args[0]].rank if op.args else 0
        if op.kind == "transpose" and attrs["dim0"] % rank == attrs["dim1"] % rank:
            return None  # of a dimension with itself
        made = prune_if_valid(replace(case, ops=tuple(new if o is op else o for o in case.ops)))
        return made if made is not None and len(made.ops) == len(case.ops) else None

    for op in case.ops:
        which = op.kind if kinds.count(op.kind) == 1 else f"{op.kind} `{op.name}`"
        rank = types[op.args[0]].rank if op.args else 0
        for name, value in attributes(op).items():
            # In place of an attribute that has the name of a number, the number is varied.
            if name != "form" and name not in spell_numbers(case, op):
                label = f"{WORDS.get(name, name)} of {WORDS.get(which, which)}"
                values = _list_values(op, name, value, rank)
                yield _Property(label, value, values, partial(change, op, name))


def _list_numbers(case: Case) -> Iterator[_Property]:
    """The numbers that forward takes, in each call that gives them a value of its own."""

    def change(place: int, name: str, value: NumberValue) -> Case | None:
        """`place`: of the call; 0 is the first."""
        calls = [
            replace(call, numbers=tuple((dict(call.numbers) | {name: value}).items())) if at == place else call
            for at, call in enumerate(case.calls, 1)
        ]
        try:
            made = set_numbers(replace(case, calls=tuple(calls)), {} if place else {name: value})
        except CaseError:  # a formula has no value there
            return None
        pruned = prune_if_valid(made)
        return pruned if pruned is not None and pruned.numbers else None

    for number in case.numbers:
        for place, given in enumerate([{number.name: number.value}, *(dict(call.numbers) for call in case.calls)]):
            for value in (value for name, value in given.items() if name == number.name):
                of_type = dict.fromkeys(type(value)(one) for one in (-value, *_NUMBERS[:6], value + 1))
                label = f"{number.name} in the {name_ordinal(place + 1)} call" if case.calls else number.name
                values = [one for one in of_type if one != value]
                yield _Property(label, value, values, partial(change, place, number.name))


def _list_values(op: Op, name: str, value: Attr, rank: int) -> Iterator[Attr]:
    kind = OPS[op.kind].attributes[name].kind
    if kind is Kind.AXIS and isinstance(value, int):
        yield from (axis for axis in range(-1, -rank - 1, -1) if axis % max(1, rank) != value % max(1, rank))
    elif kind is Kind.AXES and isinstance(value, tuple) and len(value) <= 4:
        yield from sorted(
            itertools.permutations(range(len(value))),
            key=lambda axes: sum(a != b for a, b in zip(axes, value, strict=True)),
        )
    elif kind is Kind.NUMBER and isinstance(value, (int, float)) and not isinstance(value, bool):
        floats = (float(value),) if isinstance(value, int) else ()
        numbers = _NUMBERS if name == "value" else _NUMBERS[:6]
        yield from (*floats, *dict.fromkeys(number for number in (-value, *numbers) if number != value))
    elif kind is Kind.FLAG and isinstance(value, bool):
        yield not value
    elif kind is Kind.WORD:
        words = FLOATS if value in FLOATS else OPS[op.kind].attributes[name].words  # integers have no gradient
        yield from (word for word in words if word != value)
    elif kind is Kind.INT and isinstance(value, int):
        yield from (value - 1, value + 1)


def _list_edits(case: Case) -> Iterator[_Property]:
    """The parts of a case beside its operations, each taken away."""
    edited: dict[str, Case | None] = {
        _INFERENCE: replace(case, mode="inference"),
        "static sizes": replace(case, dynamic=False),
        "no autocast": replace(case, autocast=None),
        "no recomputation": replace(case, checkpoint=""),
    }
    places = range(len(case.calls) + 1 if case.calls else 0)
    edited |= {f"the {name_ordinal(place + 1)} call alone": at_call(case, place) for place in places}
    trials = (one for one in list_edits(case) if one.experiment not in _VARIED)
    edited |= {EXPERIMENTS[one.experiment].label.format(one.argument): edit(one, case) for one in trials}
    for words, other in edited.items():
        pruned = None if other is None else prune_if_valid(other)
        yield _Property(words, False, [True], {True: pruned}.get, is_edit=True)


def _list_forms(case: Case) -> Iterator[_Property]:
    """Dtypes, and of each input its layout and, if it is a mask or an integer, its values."""

    def change(item: Input, name: str, value: Any) -> Case | None:
        return prune_if_valid(edits.replace_inputs(case, {item: replace(item, **{name: value})}))

    def cast(old: str, new: str) -> Case | None:
        return prune_if_valid(edits.change_dtype(case, [old], new))

    dtypes = list(dict.fromkeys(item.dtype for item in case.inputs if item.dtype in FLOATS))
    for dtype in dtypes:
        subject = "the dtype" if len(dtypes) == 1 else f"the dtype in place of {dtype}"
        others = [other for other in FLOATS if other != dtype]
        yield _Property(subject, dtype, others, partial(cast, dtype))
    compared = {arg for op in case.ops if op.kind in _COMPARISONS for arg in op.args}
    masks = {name for contract in case.contracts for name in (contract.mask, contract.bias)}
    for item in case.inputs:
        # Few depend on a layout other than their own; these two tell whether rows must be contiguous, or all.
        tried = ("transposed", "padded") if item.layout == "contiguous" else LAYOUTS
        layouts = [name for name in tried if LAYOUTS[name].min_rank <= len(item.shape) and name != item.layout]
        yield _Property(f"the layout of {item.name}", item.layout, layouts, partial(change, item, "layout"))
        is_mask = item.name in compared | masks or is_added(item.values.kind)
        if item.values.kind not in INDICES and (is_mask or item.dtype not in FLOATS):
            kinds = [
                Values(kind, item.values.seed, scale)
                for kind, (scale, _) in HELD.items()
                if item.dtype in DISTRIBUTIONS[kind].dtypes
                and (kind != item.values.kind or item.values.given is not None)
            ]
            yield _Property(item.name, item.values, kinds, partial(change, item, "values"))
