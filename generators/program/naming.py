"""The plain names of a case's values, so that equal programs have equal names and read alike."""

from generators.program.case import Case

_OF_FLOATS = ("x", "y", "z", "w")
_OF_OPS = {
    "matmul": "product",
    "bmm": "product",
    "einsum": "product",
    "softmax": "probs",
    "masked_fill": "masked",
    "eq": "drop",
    "logical_not": "drop",
    "transpose": "turned",
    "permute": "turned",
    "view": "viewed",
    "where": "masked",
    "mul": "scaled",
    "div": "scaled",
    "add": "total",
    "sub": "difference",
    "full": "constant",
    "scalar": "constant",
    "to_own_dtype": "copy",
    "mT": "turned",
    "max": "top",
}


def plain_names(case: Case) -> dict[str, str]:
    """The plain name of every value: inputs by their dtype, results by their operation, the one returned last `out`."""
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
    for op in case.ops:
        if op.name not in names:
            names[op.name] = choose(_OF_OPS.get(op.kind, op.kind.lower()))
    return names
