"""The plain names of a case's values, so that equal programs have equal names and read alike."""

from generators.program.case import Case

_OF_FLOATS = ("x", "y", "z", "w")
_SOFTMAX = ("softmax", "log_softmax", "logsumexp")
_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
_TRANSPOSES = ("transpose", "permute", "mT")
_STEPS_OF_SCORES = ("mul", "div", "add", "sub", "where", "masked_fill", "cast", "type_as")
_OF_OPS = {
    **dict.fromkeys(_PRODUCTS, "product"),
    **dict.fromkeys(_TRANSPOSES, "transposed"),
    "softmax": "probs",
    "masked_fill": "masked",
    "eq": "drop",
    "logical_not": "drop",
    "view": "viewed",
    "where": "masked",
    "mul": "scaled",
    "div": "scaled",
    "add": "total",
    "sub": "difference",
    "full": "constant",
    "scalar": "constant",
    "to_own_dtype": "copy",
    "max": "top",
}


def plain_names(case: Case) -> dict[str, str]:
    """The plain name of every value: inputs by their dtype, results by their operation, the one returned last `out`.

    `scores` are products that a softmax depends on, and the steps between; `kt` is what such a product multiplies with.
    """
    taken: set[str] = set()
    names = {}

    def choose(wanted: str) -> str:
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted}{number}", number + 1
        taken.add(name)
        return name

    floats = 0
    if case.ops and case.returns == (case.ops[-1].name,):
        names[case.ops[-1].name] = choose("out")
    for item in case.inputs:
        if item.parameter:
            names[item.name] = choose("weight")
        elif item.dtype == "bool" or "int" in item.dtype:
            names[item.name] = choose("tokens" if item.values.kind == "tokens" else "mask")
        else:
            names[item.name] = choose(_OF_FLOATS[floats % len(_OF_FLOATS)])
            floats += 1
    roles = _roles(case)
    for op in case.ops:
        if op.name not in names:
            names[op.name] = choose(roles.get(op.name) or _OF_OPS.get(op.kind, op.kind.lower()))
    return names


def _roles(case: Case) -> dict[str, str]:
    """`scores` and `kt`, where they are told from other values."""
    normalised: set[str] = set()
    for op in reversed(case.ops):
        if op.kind in _SOFTMAX or op.name in normalised:
            normalised.update(op.args)
    roles: dict[str, str] = {}
    transposes = {op.name for op in case.ops if op.kind in _TRANSPOSES}
    for op in case.ops:
        if op.name not in normalised:
            continue
        if op.kind in _PRODUCTS:
            roles[op.name] = "scores"
            if op.args[-1] in transposes:
                roles[op.args[-1]] = "kt"
        elif op.kind in _STEPS_OF_SCORES and any(roles.get(arg) == "scores" for arg in op.args):
            roles[op.name] = "scores"
    return roles
