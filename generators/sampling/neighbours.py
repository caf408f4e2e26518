"""Neighbours of real programs: cases that a user of the model could run, and how far each is from the model."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from generators.program import edits
from generators.program.calls import describe_differences, list_variable
from generators.program.case import Case, Input, LaterCall, SharedSlice, Values
from generators.program.emit import is_random
from generators.program.kept_places import PATTERNS, STRUCTURES, Pattern, Spelling, is_added, side_of, split_kind
from generators.program.type_check import is_valid
from generators.program.values import FLOATS, LOW_PRECISION, category
from generators.sampling.choices import Choices
from generators.sampling.dropout import add_dropout
from generators.sampling.mutations import SHARES, mutate

_SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 31, 32, 33, 64, 65, 127)
_LARGE = {"channels": 3.0, "outliers": 2.0, "one_row": 1.0}
_PATTERNS_OF_ROWS = (
    *("ones", "padding", "left_padding", "padding+empty_rows", "left_padding+empty_rows", "one_hot", "span", "random"),
)
"""Patterns of masks that have one row for each item of a batch."""
_SIDES = ("key_padding", "left_key_padding")
_PATTERNS_OF_QUERIES: dict[str, tuple[str, ...]] = {
    "": (
        "ones",
        *_SIDES,
        "key_padding+query_padding",
        "left_key_padding+left_query_padding",
        "empty_rows",
        "random_keys",
    ),
    "causal": ("", *_SIDES, "query_padding", "empty_rows"),
    **dict.fromkeys(("causal_end", "window", "band", "causal_blocks"), ("", *_SIDES)),
    "causal_documents": ("", "key_padding"),
}
"""By structure of queries and keys: what it is joined with."""
_WIDTHS = (1, 2, 3, 5, 8, 16)
_KEPT = 0.7  # share of true elements in a random mask
_STRUCTURE_KEPT = 0.6
"""The share of changes of a mask that change its padding alone."""
_STATES_SHARE = 0.3
_CHANGES = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}
_VIEWED = {"view": "reshape"}
_SEEDS = 1000
"""Seeds of masks, and so lengths."""
_TRIES = 20
"""Draws until a neighbour is valid; then the model itself."""

_Variation = Callable[[Case, Choices], Case]


class Neighbourhood:
    """Draws neighbours of the cases of a module. models: cases by the names of blocks."""

    def __init__(self, models: Mapping[str, Case]) -> None:
        self._models = dict(models)
        self.blocks = tuple(self._models.values())

    def sample(self, seed: int, index: int, **_options: object) -> Case:
        """Case number `index`: each block itself, then its neighbours in one to four changes."""
        if index < len(self.blocks):
            return self.blocks[index]
        c = Choices(f"{seed}:{index}:neighbour")
        # A neighbour's other sizes and masks fit no given values.
        model = edits.map_inputs(self.blocks[index % len(self.blocks)], edits.describe_values)
        for _try in range(_TRIES):
            case = model
            for _change in range(c.draw(_CHANGES)):
                changed = c.draw(_WEIGHTS)(case, c)
                case = changed if is_valid(changed) else case
            if case != model:
                return mutate(case, lambda _: c, {"states": _STATES_SHARE})
        return model

    def describe(self, case: Case) -> str:
        """How far a case is from the nearest block: "self_attn with bfloat16, S = 33". "" if no block is near."""
        near = [
            (differences, name)
            for name, model in self._models.items()
            if (differences := compare(model, case)) is not None
        ]
        if not near:
            return ""
        differences, name = min(near, key=lambda item: len(item[0]))
        return f"{name} with {', '.join(differences)}" if differences else name


def compare(model: Case, case: Case) -> list[str] | None:
    """The differences of a neighbour from a model, in words; None if it is another program."""
    # A variant in another layout reshapes where a view is impossible.
    kinds, other = ([_VIEWED.get(op.kind, op.kind) for op in one.ops if op.kind != "dropout"] for one in (model, case))
    if kinds != other or [i.name for i in model.inputs] != [i.name for i in case.inputs]:
        return None
    found = [f"{name} = {size}" for name, size in case.dims if model.sizes.get(name, size) != size]
    for old, new in zip(model.inputs, case.inputs, strict=True):
        found += _compare_inputs(old, new)
    is_other = {name: getattr(case, name) != getattr(model, name) for name in ("mode", "dynamic", "checkpoint")}
    states = {
        f"{case.returns[0]} alone returned": len(case.returns) < len(model.returns),
        case.mode.replace("_", " "): is_other["mode"],
        f"autocast to {case.autocast}": case.autocast not in (None, model.autocast),
        "dynamic sizes": is_other["dynamic"],
        "dropout": is_random(case) and not is_random(model),
        "recomputed": is_other["checkpoint"],
        f"a later call with {describe_differences(case)}": case.calls and not model.calls,
    }
    found += [words for words, holds in states.items() if holds]
    found += [f"{name}={value}" for name, value in case.settings]
    return list(dict.fromkeys(found))


def _compare_inputs(old: Input, new: Input) -> list[str]:
    width = f" of {new.values.param:g}" if new.values.param >= 1 else ""
    differences = {
        new.dtype: new.dtype != old.dtype and category(old.dtype) == 2,
        f"{new.name} {new.values.kind}{width}": (new.values.kind, new.values.param)
        != (old.values.kind, old.values.param),
        f"{new.name} {new.layout}": new.layout != old.layout,
        f"{new.name} elsewhere in the memory of {new.part.of if new.part else ''}": new.part != old.part,
        f"no gradient of {new.name}": new.requires_grad != old.requires_grad,
    }
    return [words for words, holds in differences.items() if holds]


_NEAR_TRIES = 8


def list_near(case: Case, c: Choices, count: int) -> list[Case]:
    """Up to `count` cases, each with one difference that a cache of compiled programs could ignore."""
    drawn = (c.draw(_FORGETTABLE)(replace(case, contracts=()), c) for _ in range(_NEAR_TRIES))
    near = {other.id: other for other in drawn if is_valid(other)}
    return [other for other in near.values() if other.id not in (case.id, replace(case, contracts=()).id)][:count]


def _change_constant(case: Case, c: Choices) -> Case:
    numbers = [(op, name, value) for op in case.ops for name, value in op.attrs if isinstance(value, (int, float))]
    if not numbers:
        return case
    changed, name, value = c.pick(numbers)
    other = (
        not value
        if isinstance(value, bool)
        else c.pick((value + 1, value - 1))
        if isinstance(value, int)
        else value / 2
    )
    return edits.change_attribute(case, changed, name, other)


def _change_gradients(case: Case, c: Choices) -> Case:
    item = c.pick([item for item in case.inputs if category(item.dtype) == 2] or case.inputs)
    return edits.replace_inputs(case, {item: replace(item, requires_grad=not item.requires_grad)})


def _change_dtype(case: Case, c: Choices) -> Case:
    floats = [item.dtype for item in case.inputs if item.dtype in FLOATS]
    new = c.pick([name for name in FLOATS[:3] if name not in floats[:1]])
    return edits.change_dtype(case, [floats[0]], new) if floats else case


def _change_sizes(case: Case, c: Choices) -> Case:
    names = sorted(list_variable(case))
    if not names:
        return case
    name = c.pick(names)
    sizes = (*_SIZES, case.sizes[name] + 1, max(1, case.sizes[name] - 1), *case.sizes.values())
    return edits.resize(case, {**case.sizes, name: c.pick(sizes)}) or case


def _change_mask(case: Case, c: Choices) -> Case:
    """Another pattern of a mask, spelled alike, with lengths of its own. Other masks, ids and positions of the batch
    are padded on the same side then, with the same lengths."""
    masks = [(item, found) for item in case.arguments if (found := _split_mask(item)) is not None]
    if not masks:
        return case
    mask, (pattern, spelling) = c.pick(masks)
    name = _draw_pattern(mask, pattern, case, c)
    # Additive masks keep their low number; the scale of others is the share of a random mask.
    scale = mask.values.scale if spelling.low else _KEPT
    param = float(c.pick(_WIDTHS)) if PATTERNS[name].param.default else 0.0
    seed = c.pick(range(_SEEDS))
    changed = replace(mask, values=Values(name + spelling.suffix, seed, scale, param=param))
    others = {item: _follow(item, changed) for item in case.arguments if item is not mask}
    return edits.replace_inputs(case, {**others, mask: changed})


def _split_mask(item: Input) -> tuple[Pattern, Spelling] | None:
    """The pattern and the spelling of a mask; random zeros and ones are one."""
    return split_kind("random_zero_one" if item.values.kind == "zero_one" else item.values.kind)


def _draw_pattern(mask: Input, pattern: Pattern, case: Case, c: Choices) -> str:
    sizes = mask.type.sizes(case.sizes)
    has_queries = len(sizes) > 2 or (len(sizes) == 2 and mask.shape[0] == mask.shape[1])
    if not has_queries or sizes[-2] == 1:
        return c.pick(_PATTERNS_OF_ROWS if sizes else ("random", "ones", "zeros"))
    structure = next((part.name for part in pattern.parts if part in STRUCTURES), "")
    if structure not in _PATTERNS_OF_QUERIES or not c.chance(_STRUCTURE_KEPT):
        structure = c.pick(tuple(_PATTERNS_OF_QUERIES))
    return "+".join(filter(None, (structure, c.pick(_PATTERNS_OF_QUERIES[structure]))))


def _follow(item: Input, mask: Input) -> Input:
    """A mask, ids or positions, padded as a mask of their batch is; other inputs as they are."""
    side, kind = side_of(mask.values.kind), item.values.kind
    is_of_batch = item.shape and (item.shape[0], item.shape[-1]) == (mask.shape[0], mask.shape[-1])
    if not side or not is_of_batch:
        return item
    found, prefix = _split_mask(item), "left_" if side == "left" else ""
    if found is not None and side_of(kind):
        kind = "+".join(_pad(part.name, prefix) for part in found[0].parts) + found[1].suffix
    elif kind.removeprefix("left_") in ("tokens", "padded_tokens", "positions", "padded_positions"):
        kind = f"{prefix}padded_{kind.removeprefix('left_').removeprefix('padded_')}"
    else:
        return item
    values = item.values
    return replace(item, values=Values(kind, mask.values.seed, values.scale, param=values.param))


def _pad(part: str, prefix: str) -> str:
    return prefix + part.removeprefix("left_") if part.endswith("padding") else part


def _change_values(case: Case, c: Choices) -> Case:
    given = [item for item in case.arguments if item.dtype in FLOATS and item.values.kind == "normal"]
    if not given:
        return case
    item = c.pick(given)
    kind = c.draw({**_LARGE, "repeated_rows": 1.0, "zero_tail": 0.5, "zero_head": 0.5})
    scale = 100.0 if kind in _LARGE else item.values.scale
    return edits.replace_inputs(case, {item: replace(item, values=Values(kind, item.values.seed, scale))})


def _change_layout(case: Case, c: Choices) -> Case:
    item = c.pick(case.arguments)
    if item.part is not None:
        return _change_part(case, item, item.part, c)
    layout = c.pick(("transposed", "heads_inner", "padded", "offset", "expanded"))
    return edits.replace_inputs(case, {item: replace(item, layout=layout)})


def _change_part(case: Case, item: Input, part: SharedSlice, c: Choices) -> Case:
    """Another place in the memory that the argument shares, or a copy, in the first call or in a later one."""
    how = c.pick(("moved", "shares", "apart"))
    start = part.start + c.pick((-1, 1)) if how == "moved" else part.start
    later = () if how == "moved" else (LaterCall(shares=how == "shares", apart=how == "apart"),)
    moved = replace(item, part=replace(part, start=start, copied=how == "shares"))
    return edits.replace_inputs(replace(case, calls=(*case.calls, *later), contracts=()), {item: moved})


def _change_mode(case: Case, _c: Choices) -> Case:
    if case.training:
        plain = replace(case, mode="inference", contracts=())
        return edits.map_inputs(plain, lambda item: replace(item, requires_grad=True))
    masks = {item: replace(item, requires_grad=False) for item in case.arguments if is_added(item.values.kind)}
    return edits.replace_inputs(replace(case, mode="training", contracts=()), masks)


def _change_autocast(case: Case, c: Choices) -> Case:
    return replace(case, autocast=None if case.autocast else c.pick(LOW_PRECISION), contracts=())


def _make_dynamic(case: Case, _c: Choices) -> Case:
    return replace(case, dynamic=not case.dynamic)


def _drop(case: Case, _c: Choices) -> Case:
    return add_dropout(case) if case.training else case


def return_first(case: Case, _c: Choices | None = None) -> Case:
    """The case as most callers use it: they ignore weights that attention returns beside its result."""
    return edits.prune_if_valid(replace(case, returns=case.returns[:1], contracts=())) or case


def _add_calls(case: Case, c: Choices) -> Case:
    """Later calls; in training, of a program whose operations are recomputed in some cases."""
    return mutate(case, lambda _: c, {"calls": 1.0, "recomputed": SHARES["recomputed"]})


_WEIGHTS: dict[_Variation, float] = {
    _change_sizes: 4.0,
    _change_dtype: 3.0,
    _change_mask: 3.0,
    _change_mode: 2.0,
    return_first: 2.0,
    _make_dynamic: 2.0,
    _change_values: 1.5,
    _change_autocast: 1.0,
    _change_layout: 1.0,
    _drop: 1.0,
    _add_calls: 1.0,
}
_FORGETTABLE: dict[_Variation, float] = {
    _change_constant: 5.0,
    _change_layout: 3.0,
    _change_dtype: 1.0,
    _change_gradients: 1.0,
    _change_mode: 1.0,
    _change_autocast: 1.0,
    _change_sizes: 1.0,
}
