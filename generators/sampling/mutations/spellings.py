"""The same computation in other words: a rewrite of a compiler knows one spelling, and its mistakes lie beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from generators.program.case import Attr, Case, Op, TensorType
from generators.program.edits import fresh
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.program.type_check import attributes, make_op, types_of
from generators.sampling.choices import Choices

Step = tuple[str, Sequence[str], Mapping[str, Attr]]
"""An operation to write: its kind, its arguments and attributes. "<n>" is the result of step n of the same spelling."""

Spelling = Callable[[Op, Mapping[str, Attr], Sequence[TensorType]], "Sequence[Step] | None"]
"""Other steps for an operation, of which the last gives its result; None where there are none."""


def respell(case: Case, c: Choices) -> Case | None:
    """One operation in another of its spellings."""
    types = types_of(case)
    found = [(op, spelling) for op in case.ops for spelling in SPELLINGS.get(op.kind, ())]
    if not found:
        return None
    op, spelling = c.pick(found)
    steps = spelling(op, attributes(op), [types[a] for a in op.args])
    return None if steps is None else _with_steps(case, op, steps)


def _with_steps(case: Case, op: Op, steps: Sequence[Step]) -> Case:
    """The case with `steps` in the place of an operation; what contracts say holds as before."""
    names: list[str] = []
    ops: list[Op] = []
    taken = {i.name for i in case.inputs} | {o.name for o in case.ops}
    for number, (kind, args, attrs) in enumerate(steps):
        name = op.name if number == len(steps) - 1 else fresh(case, kind, taken)
        taken.add(name)
        names.append(name)
        given = [names[int(a[1:-1])] if a.startswith("<") else a for a in args]
        ops.append(make_op(name, kind, given, attrs))
    at = case.ops.index(op)
    return replace(case, ops=(*case.ops[:at], *ops, *case.ops[at + 1 :]))


def _other_form(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    words = OPS[op.kind].attributes["form"].words
    usable = [w for w in words if w != "in_place"]
    if attrs["form"] not in usable:
        return None
    following = usable[(usable.index(str(attrs["form"])) + 1) % len(usable)]
    return [(op.kind, op.args, {**attrs, "form": following})]


def _axes(op: Op, attrs: Mapping[str, Attr], rank: int) -> list[int]:
    axes = list(range(rank))
    i, j = (rank - 2, rank - 1) if op.kind == "mT" else (_whole(attrs["dim0"]) % rank, _whole(attrs["dim1"]) % rank)
    axes[i], axes[j] = axes[j], axes[i]
    return axes


def _whole(value: Attr) -> int:
    assert isinstance(value, int)
    return value


def _permuted(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    return [("permute", op.args, {"dims": tuple(_axes(op, attrs, types[0].rank))})]


def _transposed(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A permutation of two axes, told from the end or from the beginning."""
    axes = attrs["dims"]
    assert isinstance(axes, tuple)
    moved = [i for i, axis in enumerate(axes) if isinstance(axis, int) and axis % len(axes) != i]
    if len(moved) != 2:
        return None
    return [("transpose", op.args, {"dim0": moved[0] - len(axes), "dim1": moved[1] - len(axes)})]


def _from_the_end(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    i, j, rank = _whole(attrs["dim0"]), _whole(attrs["dim1"]), types[0].rank
    return [
        ("transpose", op.args, {"dim0": i - rank if i >= 0 else i + rank, "dim1": j - rank if j >= 0 else j + rank})
    ]


def _matrices(op: Op, _attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A product of stacks of matrices: as bmm over one axis of stacks."""
    left, right = types
    if left.rank == right.rank == 3 and left.shape[0] == right.shape[0]:
        return [("bmm", op.args, {})]
    if left.rank != 4 or right.rank != 4 or left.shape[:2] != right.shape[:2]:
        return None
    batch, heads = left.shape[:2]
    stacked = batch * heads
    return [
        ("reshape", op.args[:1], {"sizes": (stacked, *left.shape[2:])}),
        ("reshape", op.args[1:], {"sizes": (stacked, *right.shape[2:])}),
        ("bmm", ("<0>", "<1>"), {}),
        ("reshape", ("<2>",), {"sizes": (batch, heads, left.shape[2], right.shape[3])}),
    ]


def _einsum(op: Op, _attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    left, right = types
    if left.rank != right.rank or left.rank not in (3, 4) or left.shape[:-2] != right.shape[:-2]:
        return None
    equation = "bqk,bkd->bqd" if left.rank == 3 else "bhqk,bhkd->bhqd"
    return [("einsum", op.args, {"equation": equation})]


def _matmul(op: Op, _attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    return [("matmul", op.args, {})]


def _no_einsum(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    if attrs["equation"] in ("bhqk,bhkd->bhqd", "bqk,bkd->bqd"):
        return [("matmul", op.args, {})]
    if attrs["equation"] in ("bhqd,bhkd->bhqk", "bqd,bkd->bqk"):
        return [("transpose", op.args[1:], {}), ("matmul", (op.args[0], "<0>"), {})]
    return None


def _inverse(kind: str) -> Spelling:
    def spelled(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
        other = attrs["other"]
        if len(op.args) != 1 or attrs["reverse"] or not isinstance(other, int | float) or not other:
            return None
        if attrs["form"] == "in_place":
            return None
        return [(kind, op.args, {"other": 1.0 / other, "form": attrs["form"]})]

    return spelled


def _by_tensor(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A number as a tensor without axes."""
    other = attrs["other"]
    if len(op.args) != 1 or attrs["reverse"] or not isinstance(other, float) or attrs["form"] == "in_place":
        return None
    if types[0].rank == 0 or "float" not in types[0].dtype:
        return None
    return [
        ("full", (), {"sizes": (), "value": other, "dtype": types[0].dtype}),
        (op.kind, (*op.args, "<0>"), {"form": attrs["form"]}),
    ]


def _exponentials(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    if attrs["dtype"] is not None:
        return None
    dim = {"dim": attrs["dim"], "keepdim": True}
    return [
        ("amax", op.args, dim),
        ("sub", (op.args[0], "<0>"), {}),
        ("exp", ("<1>",), {}),
        ("sum", ("<2>",), dim),
        ("div", ("<2>", "<3>"), {}),
    ]


def _in_float32(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    if attrs["dtype"] is not None or types[0].dtype not in ("float16", "bfloat16"):
        return None
    return [
        ("cast", op.args, {"dtype": "float32", "form": "method"}),
        ("softmax", ("<0>",), {"dim": attrs["dim"], "form": attrs["form"]}),
        ("cast", ("<1>",), {"dtype": types[0].dtype}),
    ]


def _other_axis_sign(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    dim, rank = _whole(attrs["dim"]), types[0].rank
    return [(op.kind, op.args, {**attrs, "dim": dim - rank if dim >= 0 else dim + rank})] if rank else None


def _where(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    if attrs["form"] == "in_place":
        return None
    return [("where", (op.args[1], op.args[0]), {"other": attrs["value"], "reverse": True})]


def _masked_fill(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    if len(op.args) != 2:
        return None
    fill = {"value": attrs["other"]}
    if attrs["reverse"]:
        return [("masked_fill", (op.args[1], op.args[0]), fill)]
    return [("logical_not", op.args[:1], {}), ("masked_fill", (op.args[1], "<0>"), fill)]


def _linear(op: Op, _attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    steps: list[Step] = [("transpose", (op.args[1],), {"dim0": 0, "dim1": 1}), ("matmul", (op.args[0], "<0>"), {})]
    return [*steps, ("add", ("<1>", op.args[2]), {})] if len(op.args) == 3 else steps


def _attention(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    """The fused call in steps, where it has a scale of its own and neither dropout nor grouped heads."""
    scale = attrs["scale"]
    if scale is None or attrs["dropout_p"] or attrs["enable_gqa"] or attrs["is_causal"]:
        return None
    steps: list[Step] = [
        ("transpose", op.args[1:2], {}),
        ("matmul", (op.args[0], "<0>"), {}),
        ("mul", ("<1>",), {"other": scale}),
    ]
    if len(op.args) == 4:
        if types[3].dtype == "bool":
            steps.append(("where", (op.args[3], "<2>"), {"other": float("-inf")}))
        else:
            steps.append(("add", ("<2>", op.args[3]), {}))
    last = len(steps) - 1
    return [*steps, ("softmax", (f"<{last}>",), {}), ("matmul", (f"<{last + 1}>", op.args[2]), {})]


def _negated(op: Op, attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A difference as a sum with the negative, and back."""
    if len(op.args) != 2 or attrs["reverse"] or attrs["form"] == "in_place" or "float" not in types[1].dtype:
        return None
    return [("neg", op.args[1:], {}), ("sub" if op.kind == "add" else "add", (op.args[0], "<0>"), {})]


def _around(op: Op, _attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A transposition before the last step and one after it: for operations on every element by itself."""
    if len(op.args) != 1 or types[0].rank < 2:
        return None
    return [("transpose", op.args, {}), (op.kind, ("<0>",), dict(op.attrs)), ("transpose", ("<1>",), {})]


def _flattened(op: Op, attrs: Mapping[str, Attr], _types: Sequence[TensorType]) -> Sequence[Step] | None:
    """A view by way of one axis."""
    return [("reshape", op.args, {"sizes": (Size.of(-1),)}), ("reshape", ("<0>",), {"sizes": attrs["sizes"]})]


SPELLINGS: Mapping[str, Sequence[Spelling]] = {
    "transpose": (_permuted, _from_the_end),
    "mT": (_permuted,),
    "permute": (_transposed,),
    "matmul": (_matrices, _einsum, _other_form),
    "bmm": (_matmul, _einsum),
    "einsum": (_no_einsum,),
    "div": (_inverse("mul"), _by_tensor, _other_form),
    "mul": (_inverse("div"), _by_tensor, _other_form, _around),
    "add": (_negated, _other_form),
    "sub": (_negated, _other_form),
    "softmax": (_exponentials, _in_float32, _other_axis_sign, _other_form),
    "masked_fill": (_where, _other_form),
    "where": (_masked_fill,),
    "view": (_flattened,),
    "reshape": (_flattened,),
    "linear": (_linear,),
    "sdpa": (_attention,),
    "cast": (_other_form,),
    "tanh": (_other_form, _around),
    "exp": (_around,),
}
"""By kind of operation."""
