"""Fewer calls of a module, and fewer differences between them."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from generators.program.case import Case, FurtherCall
from generators.program.further_calls import at_call
from generators.program.simplicity import SIMPLER_CALLS

_PLAIN = FurtherCall()


def drop_calls(case: Case) -> Iterator[Case]:
    """Call the module once, as in the first call or as in any other; then leave calls out one by one."""
    for call in (_PLAIN, *case.calls) if case.calls else ():
        yield at_call(case, call)
    if len(case.calls) > 1:
        for call in case.calls:
            yield replace(case, calls=(call,))
        for at, call in enumerate(case.calls):
            others = (*case.calls[:at], *case.calls[at + 1 :])
            yield replace(case, calls=others)
            # What was the first call is left out.
            yield replace(at_call(case, call), calls=others, checkpoint=case.checkpoint)
    yield replace(case, marked=(), checkpoint="")
    yield replace(case, marked=())
    yield replace(case, checkpoint="full" if case.checkpoint == "selective" else "")


def drop_differences(case: Case) -> Iterator[Case]:
    """Leave out what tells a call from the first one, and simplify what is left."""
    for at, call in enumerate(case.calls):
        changes: list[dict[str, Any]] = [{field.name: field.default} for field in fields(call)]
        changes += [{"sizes": (item,)} for item in call.sizes]
        changes += [{name: word} for name, words in SIMPLER_CALLS.items() for word in words]
        for number, (name, size) in enumerate(call.sizes):
            for smaller in (case.sizes[name] + 1, 1, 2, size // 2, size - 1):
                sizes = (*call.sizes[:number], (name, smaller), *call.sizes[number + 1 :])
                changes.append({"sizes": sizes})
        for change in changes:
            yield replace(case, calls=(*case.calls[:at], replace(call, **change), *case.calls[at + 1 :]))
