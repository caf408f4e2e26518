"""Roles of values in attention (q, k, v, mask, scores, probs), and plain names for values and dimensions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from generators.program.case import Case, Op, TensorType, free_name
from generators.program.ops import VIEWS
from generators.program.type_check import RESERVED, types_of
from generators.program.values import INDICES, category

_OF_FLOATS = ("x", "y", "z", "w")
_SOFTMAX = ("softmax", "log_softmax", "logsumexp", "exp")
_PRODUCTS = ("matmul", "bmm", "einsum")
_TRANSPOSES = ("transpose", "permute", "mT")
_FUSED = ("sdpa", "flex_attention")
_STEPS = frozenset({"mul", "div", "add", "sub", "where", "masked_fill", "cast", "type_as"}) | VIEWS
"""Operations that may stand between q @ k and the softmax, and between the softmax and the product with v."""
_OPERANDS = {"add": "bias", "mul": "scale", "div": "scale", "where": "mask", "masked_fill": "mask"}
"""The role of the operand that a step reads besides scores."""
_OF_OPS = {
    **dict.fromkeys(_PRODUCTS, "product"),
    **dict.fromkeys(_TRANSPOSES, "transposed"),
    **dict.fromkeys(("masked_fill", "where"), "masked"),
    **dict.fromkeys(("eq", "logical_not"), "drop"),
    **dict.fromkeys(("mul", "div"), "scaled"),
    **dict.fromkeys(("full", "scalar"), "constant"),
    "softmax": "probs",
    "view": "viewed",
    "add": "total",
    "sub": "difference",
    "to_own_dtype": "copy",
}
HEADS = ("q", "k", "v")

ReadAt = tuple[str, int]
"""An operation that reads a value, and the place among its arguments."""


@dataclass(frozen=True, slots=True)
class AttentionReads:
    """An attention as operations compute it."""

    reads: Mapping[str, ReadAt]  # by role, where its value is read
    scores: frozenset[str] = frozenset()  # the names of the scores
    fused: bool = False  # a single call reads k as [..., length, dim]; else a product reads the transpose of k


def find_attentions(case: Case) -> list[AttentionReads]:
    """All attentions: fused calls, and each softmax of a product, also if it is spelled by exponentials."""
    found = []
    for op in case.ops:
        if op.kind in _FUSED:
            roles = (*HEADS, "mask") if op.kind == "sdpa" else HEADS
            found.append(
                AttentionReads({role: (op.name, at) for at, role in enumerate(roles[: len(op.args)])}, fused=True)
            )
        elif op.kind in _SOFTMAX:
            reads: dict[str, ReadAt] = {}
            scores: dict[str, bool] = {}
            if _read_scores(op.args[0], case.makers, reads, scores):
                reads |= _find_value(case, op.name)
                found.append(AttentionReads(reads, frozenset(name for name, leads in scores.items() if leads)))
    return found


def _read_scores(name: str, made: Mapping[str, Op], reads: dict[str, ReadAt], scores: dict[str, bool]) -> bool:
    """Whether a value is a product followed only by `_STEPS`. Adds its finds to `reads` and `scores`."""
    if name in scores or name not in made:
        return scores.get(name, False)
    op = made[name]
    if op.kind in _PRODUCTS and len(op.args) > 1:
        reads |= {role: (name, at) for at, role in enumerate(("q", "k"))}
        scores[name] = True
        return True
    scores[name] = False
    if op.kind in _STEPS:
        leads = [_read_scores(arg, made, reads, scores) for arg in op.args]
        scores[name] = any(leads)
        if any(leads) and op.kind in _OPERANDS:
            others = [at for at, lead in enumerate(leads) if not lead]
            reads |= {_OPERANDS[op.kind]: (name, others[0])} if others else {}
    return scores[name]


def _find_value(case: Case, softmax: str) -> dict[str, ReadAt]:
    """Where v is read: the second factor of the product with the weights."""
    weights = {softmax}
    for op in case.ops:
        if op.kind in _PRODUCTS and len(op.args) > 1 and op.args[0] in weights:
            return {"v": (op.name, 1)}
        if op.kind in _STEPS | {"dropout", "narrow", "to_own_dtype"} and weights & {*op.args}:
            weights.add(op.name)
    return {}


def trace(case: Case, place: ReadAt) -> list[str]:
    """The chain of first operands, from the value read at `place` back to an input."""
    made = case.makers
    names = [made[place[0]].args[place[1]]]
    while names[-1] in made and made[names[-1]].args:
        names.append(made[names[-1]].args[0])
    return names


def plain_names(case: Case) -> dict[str, str]:
    """The plain name of every value: of inputs by their role or dtype, of results by their operation. The last
    returned value is `out`.

    `scores` are products that a softmax depends on, and the steps between them. `kt` is the transposed k of a product.
    """
    taken = {number.name for number in case.numbers}
    names = {}

    def choose(wanted: str) -> str:
        name = free_name(wanted, taken)
        taken.add(name)
        return name

    floats = 0
    roles = _name_roles(case)
    if case.ops and case.returns == (case.ops[-1].name,):
        names[case.ops[-1].name] = choose("out")
    for item in case.inputs:
        if item.name in roles:
            names[item.name] = choose(roles[item.name])
        elif item.parameter:
            names[item.name] = choose("weight")
        elif item.dtype == "bool" or "int" in item.dtype:
            names[item.name] = choose("tokens" if item.values.kind in INDICES else "mask")
        else:
            names[item.name] = choose(_OF_FLOATS[floats % len(_OF_FLOATS)])
            floats += 1
    for op in case.ops:
        if op.name not in names:
            names[op.name] = choose(roles.get(op.name) or _OF_OPS.get(op.kind, op.kind.lower()))
    return names


def _name_roles(case: Case) -> dict[str, str]:
    """Names for values that lead to a single role (or to k and v: `kv`), for scores, and for `kt`."""
    made, floats = case.makers, {item.name: category(item.dtype) == 2 for item in case.inputs}
    parts: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for found in find_attentions(case):
        names |= dict.fromkeys(found.scores, "scores")
        for role, place in found.reads.items():
            for name in trace(case, place):
                parts.setdefault(name, set()).add(role)
        kt = trace(case, found.reads["k"])[0] if "k" in found.reads else ""
        if not found.fused and kt in made and made[kt].kind in _TRANSPOSES:
            names[kt] = "kt"
    for name, roles in parts.items():
        role = "kv" if roles == {"k", "v"} else next(iter(roles)) if len(roles) == 1 else ""
        if role and name in floats:
            names[name] = role if floats[name] or role != "bias" else "mask"
        elif role in HEADS and name in made and name not in names:
            names[name] = f"{role}_t" if made[name].kind in _TRANSPOSES else role
    return names


def plain_dims(case: Case) -> dict[str, str]:
    """The plain name of every dimension, conventional names first: B batch, H heads, G key heads, S queries, T keys, D
    head_dim, V value_dim."""
    types = types_of(case)
    names: dict[str, str] = {}
    for found in find_attentions(case):
        if case.makers[next(iter(found.reads.values()))[0]].kind != "einsum":
            for letter, dim in _list_axes(case, found, types):
                if dim not in names and letter not in names.values():
                    names[dim] = letter
    for dim in case.sizes:
        if dim not in names:
            taken = RESERVED.union(names.values())
            names[dim] = next(letter for letter in (dim[0], *"LMNPQRWXYZACEIJKOU", dim) if letter not in taken)
    return names


def _list_axes(case: Case, found: AttentionReads, types: Mapping[str, TensorType]) -> Iterator[tuple[str, str]]:
    k_axes = "BGTD" if found.fused else "BGDT"
    letters = {"q": "BHSD", "k": k_axes, "v": "BGTV"}
    for role in HEADS:
        if role in found.reads:
            shape = types[trace(case, found.reads[role])[0]].shape
            axes = letters[role] if len(shape) > 3 else letters[role][0] + letters[role][2:]
            for letter, size in zip(reversed(axes), reversed(shape), strict=False):
                if size.is_name:
                    yield letter, str(size)
