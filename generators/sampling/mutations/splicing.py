"""Two cases made one: what one returns becomes an input of the other."""

from dataclasses import replace

from generators.program.case import Case, Input, Op
from generators.program.dtypes import category
from generators.program.edits import fresh, reading, renamed_dims, resized
from generators.program.type_check import make_op, types_of
from generators.sampling.choices import Choices


def splice(case: Case, c: Choices, other: Case) -> Case | None:
    """`case` with one of its inputs computed as `other` computes what it returns, in the sizes and dtype of that input."""
    slots = [i for i in case.inputs if not i.parameter and category(i.dtype) == 2]
    if not slots:
        return None
    slot = c.pick(slots)
    donor = _apart(other, case)
    output = donor.returns[0]
    kind = types_of(donor)[output]
    if category(kind.dtype) != 2 or kind.rank != len(slot.shape):
        return None
    wanted = dict(donor.sizes)
    for size, target in zip(kind.shape, slot.shape, strict=True):
        if size.is_name:
            wanted[str(size)] = target.value(case.sizes)
    sized = resized(donor, wanted)
    if sized is None or types_of(sized)[output].sizes(sized.sizes) != slot.type.sizes(case.sizes):
        return None
    made = output
    links: tuple[Op, ...] = ()
    if kind.dtype != slot.dtype:
        made = fresh(sized, "cast", {i.name for i in case.inputs} | {o.name for o in case.ops})
        links = (make_op(made, "cast", (output,), {"dtype": slot.dtype}),)
    return replace(
        case,
        dims=(*case.dims, *sized.dims),
        inputs=(*_seeded(sized.inputs, case.inputs), *(i for i in case.inputs if i is not slot)),
        ops=(*sized.ops, *links, *(reading(op, slot.name, made) for op in case.ops)),
        returns=tuple(made if r == slot.name else r for r in case.returns),
        contracts=tuple(contract.renamed({slot.name: made}) for contract in case.contracts),
    )


def _seeded(inputs: tuple[Input, ...], beside: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs with seeds that those beside them don't have."""
    first = 1 + max((i.values.seed for i in beside), default=0)
    return tuple(replace(i, values=replace(i.values, seed=first + n)) for n, i in enumerate(inputs))


def _apart(case: Case, beside: Case) -> Case:
    """`case` with names of values and dimensions that `beside` does not use."""
    taken = {i.name for i in beside.inputs} | {o.name for o in beside.ops}
    names: dict[str, str] = {}
    for name in (*(i.name for i in case.inputs), *(o.name for o in case.ops)):
        names[name] = fresh(case, name, taken) if name in taken else name
        taken.add(names[name])
    dims: dict[str, str] = {}
    used = {name for name, _ in beside.dims}
    for name, _ in case.dims:
        new, number = name, 2
        while new in used:
            new, number = f"{name}{number}", number + 1
        dims[name] = new
        used.add(new)
    case = renamed_dims(case, dims)
    return replace(
        case,
        inputs=tuple(replace(i, name=names[i.name]) for i in case.inputs),
        ops=tuple(replace(o, name=names[o.name], args=tuple(names[a] for a in o.args)) for o in case.ops),
        returns=tuple(names[r] for r in case.returns),
        contracts=(),
    )
