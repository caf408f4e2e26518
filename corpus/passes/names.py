"""Plain names for what is left."""

from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case
from generators.program.naming import plain_names


def renamed_values(case: Case) -> Iterator[Case]:
    """The same program with the plain name for every value."""
    names = plain_names(case)
    yield replace(
        case,
        inputs=tuple(replace(i, name=names[i.name]) for i in case.inputs),
        ops=tuple(replace(o, name=names[o.name], args=tuple(names[a] for a in o.args)) for o in case.ops),
        returns=tuple(names[r] for r in case.returns),
        contracts=tuple(c.renamed(names) for c in case.contracts),
    )
