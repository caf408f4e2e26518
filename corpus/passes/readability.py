"""The last stage of shrinking: a form of the failing case in which a reader can tell heads from lengths.

- q, k and v are separate inputs with the same number of axes.
- Each size that may differ from the others has its own letter and number, larger than 1.
- Sizes that stay equal must be equal for the case to fail.
- Values have plain names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, count

from corpus.passes.program import rename_values
from generators.errors import accepts
from generators.program.case import Case, Input, Op, TensorType
from generators.program.edits import make_name, map_sizes, prune_if_valid, replace_inputs, resize, swap
from generators.program.references import list_dims, list_sizes, rename
from generators.program.regions import list_autocasts
from generators.program.roles import HEADS, find_attentions, plain_dims, trace
from generators.program.sizes import ONE, Size
from generators.program.type_check import infer
from generators.program.writes import is_written

_MOST_NAMES = 9
"""If more equal sizes meet in an operation, all stay equal, because the search tries every subset."""


def make_readable(case: Case) -> Iterator[Case]:
    """All changes at once, then without different sizes, then also without separate inputs."""
    if not case.calls:  # later calls name dimensions too
        own = _name_plainly(_give_own_inputs(case))
        yield from (_grow(own, own.sizes), own, _name_plainly(case))


def grow_sizes(case: Case) -> Iterator[Case]:
    """Make all sizes different at once, then one size at a time."""
    yield _grow(case, case.sizes)
    yield from (_grow(case, [name]) for name in case.sizes)


def _name_plainly(case: Case) -> Case:
    """A letter for every size that may differ from the others, and plain names."""
    split = _split_dims(_name_products(_name_ones(case)))
    named = next(rename_values(rename(split, plain_dims(split))))
    order = sorted(named.sizes, key=lambda name: ("BHGSTDV".find(name) % 8, name))
    inputs = tuple(sorted(named.inputs, key=lambda item: "qkv".find(item.name) % 8))
    return replace(named, inputs=inputs, dims=tuple((name, named.sizes[name]) for name in order))


def _grow(case: Case, names: Iterable[str]) -> Case:
    """The case with these dimensions larger than 1 and unlike all others, unless that makes the program invalid."""
    names, grown = list(names), case
    for at, name in enumerate(names):
        others = {value for other, value in grown.sizes.items() if other not in names[at:]}
        size = next(value for value in count(max(2, case.sizes[name])) if value not in others)
        larger = resize(grown, {**grown.sizes, name: size})
        grown = larger if larger is not None and len(larger.contracts) == len(case.contracts) else grown
    return grown


def _give_own_inputs(case: Case) -> Case:
    """The case with separate inputs for q, k and v, with the same number of axes, if the program allows it."""
    if len(case.contracts) > 1 or is_written(case):
        return case
    given = case
    for found in find_attentions(case):
        used: set[str] = set()
        for role in HEADS:
            if role in found.reads:
                path = trace(given, found.reads[role])
                if path[-1] in used:
                    given = prune_if_valid(_copy_path(given, path, found.reads[role], role)) or given
                used.add(trace(given, found.reads[role])[-1])
    for names in _list_heads(given):
        items = [item for item in given.inputs if item.name in names]
        rank = max((len(item.shape) for item in items), default=0)
        padded = {item: replace(item, shape=(*[ONE] * (rank - len(item.shape)), *item.shape)) for item in items}
        aligned = replace_inputs(given, padded)
        for axis in range(rank):
            heads = [item for item in aligned.inputs if item.name in names]
            sizes = {item.shape[axis] for item in heads} - {ONE}
            if len(sizes) == 1:
                aligned = _fill_axis(aligned, [i for i in heads if i.shape[axis] not in sizes], axis, sizes.pop())
        given = prune_if_valid(aligned) or given
    return given


def _copy_path(case: Case, names: list[str], place: tuple[str, int], role: str) -> Case:
    """The case with a copy of an input, and of the operations that lead from it to `place`.

    names: the values on this way, from `place` back to the input.
    """
    made, items = case.makers, {item.name: item for item in case.inputs}
    if names[-1] not in items:
        return case
    new: dict[str, str] = {}
    for name in reversed(names):
        new[name] = make_name(case, role, new.values())
    item: Input = items[names[-1]]
    seed = 1 + max(other.values.seed for other in case.inputs)
    copied = replace(item, name=new[item.name], values=replace(item.values, seed=seed))
    path = [replace(made[n], name=new[n], args=(new[made[n].args[0]], *made[n].args[1:])) for n in reversed(names[:-1])]
    ops = list(case.ops)
    at = next(i for i, op in enumerate(ops) if op.name == place[0])
    args = list(ops[at].args)
    args[place[1]] = new[names[0]]
    ops[at : at + 1] = [*path, replace(ops[at], args=tuple(args))]
    renamed = [(c, {role: new[c.reads[role]]}) for c in case.contracts if c.reads[role] in new]
    contracts = tuple(replace(c, **changed) for c, changed in renamed)  # type: ignore[arg-type]
    return replace(case, inputs=(*case.inputs, copied), ops=tuple(ops), contracts=contracts)


def _name_ones(case: Case) -> Case:
    """A name for every axis in which q, k and v all have size 1."""
    for names in _list_heads(case):
        for axis in range(max((len(item.shape) for item in case.inputs if item.name in names), default=0)):
            heads = [item for item in case.inputs if item.name in names]
            if all(axis < len(item.shape) and item.shape[axis].constant == 1 for item in heads):
                name = next(n for i in count() if (n := f"N{i}") not in case.sizes)
                named = _fill_axis(case, heads, axis, Size.of(name))
                named = replace(named, dims=(*case.dims, (name, 1)))
                case = named if _grow(named, [name]) != named else case
    return case


def _name_products(case: Case) -> Case:
    """A single name for a product or sum in the shape of an input, if its dimensions occur nowhere else."""
    sizes = {*list_sizes((case.inputs, case.ops))}
    apart = {
        size: min(size.names())
        for item in case.inputs
        for size in item.shape
        if size.names() and all(other == size or not size.names() & other.names() for other in sizes)
    }
    dims = {**case.sizes, **{name: size.value(case.sizes) for size, name in apart.items()}}
    named = map_sizes(case, lambda size: Size.of(apart.get(size, size)))
    return prune_if_valid(replace(named, dims=tuple(dims.items()))) or case


def _list_heads(case: Case) -> list[set[str]]:
    inputs = {item.name for item in case.inputs}
    places = [[found.reads[role] for role in HEADS if role in found.reads] for found in find_attentions(case)]
    return [{trace(case, place)[-1] for place in of_one} & inputs for of_one in places]


def _fill_axis(case: Case, items: Sequence[Input], axis: int, size: Size) -> Case:
    return replace_inputs(case, {item: replace(item, shape=swap(item.shape, axis, size)) for item in items})


def _split_dims(case: Case) -> Case:
    """A name for every group of sizes that the operations force to be equal."""
    # Sizes are made different first: size 1 broadcasts, and equal sizes hide which of them must be equal.
    sizes = _grow(case, case.sizes).sizes
    numbers = count()
    fixed = _list_computed(case)
    was = {name: name for name in fixed}

    def name_apart(size: Size) -> Size:
        names = {old: f"{old[:3]}x{next(numbers)}" for old in sorted(size.names() - fixed)}
        was.update((new, old) for old, new in names.items())
        return size.rename(names)

    apart = map_sizes(case, name_apart)
    same: dict[str, str] = {new: new for new in was}
    types, casts = {item.name: item.type for item in apart.inputs}, list_autocasts(case)
    for op in apart.ops:
        _unite(op, types, {new: sizes[old] for new, old in was.items()}, was, same)
        known = {new: sizes[old] for new, old in was.items()}
        types[op.name] = infer(*_rename(op, types, same), known, casts[op.name])
    united = map_sizes(apart, lambda size: size.rename(same))
    split = prune_if_valid(replace(united, dims=tuple((new, case.sizes[old]) for new, old in was.items())))
    return split if split is not None and len(split.contracts) == len(case.contracts) else case


def _list_computed(case: Case) -> frozenset[str]:
    """Dimensions in computed attributes, such as `triu(T - S)`: types do not show their meaning."""
    alone = [value for op in case.ops for _, value in op.attrs if isinstance(value, Size)]
    return list_dims((*alone, *(size for size in list_sizes((case.inputs, case.ops)) if not size.is_name)))


def _unite(
    op: Op, types: Mapping[str, TensorType], sizes: dict[str, int], was: Mapping[str, str], same: dict[str, str]
) -> None:
    """Record in `same` which new names of one old dimension the operation forces to be equal."""
    op, types = _rename(op, types, same)
    met = dict.fromkeys(
        name for size in list_sizes((*(types[arg] for arg in op.args), op)) for name in sorted(size.names())
    )
    other = 1 + max(sizes.values(), default=0)

    def is_free(names: Sequence[str]) -> bool:
        return accepts(infer, op, types, {**sizes, **dict.fromkeys(names, other)})

    for old in dict.fromkeys(was[name] for name in met):
        left = [name for name in met if was[name] == old]
        while left:
            groups = ((left[0], *rest) for n in range(len(left)) for rest in combinations(left[1:], n))
            is_short = len(left) <= _MOST_NAMES and sizes[left[0]] > 1
            group = next(filter(is_free, groups), left) if is_short else left
            same.update((name, group[0]) for name, united in same.items() if united in group)
            left = [name for name in left if name not in group]


def _rename(op: Op, types: Mapping[str, TensorType], names: Mapping[str, str]) -> tuple[Op, dict[str, TensorType]]:
    """The operation and the types of its arguments with dimensions renamed."""
    return rename(op, names), {name: rename(types[name], names) for name in op.args}
