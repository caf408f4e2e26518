"""Draws programs that have a given part: an operation, a region, a change, or a form that no operation tells."""

from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial

from generators.errors import UserError
from generators.program.case import Case
from generators.program.changes import KINDS, list_changes
from generators.program.portability import OBSTACLES, TAKEN_REGIONS, find_obstacle
from generators.program.regions import REGIONS
from generators.sampling.calls import add_around, add_calls
from generators.sampling.changes import add_changes, add_layers
from generators.sampling.choices import Choices
from generators.sampling.dtypes import WRITERS, add_dtypes
from generators.sampling.integers import add_integers
from generators.sampling.memory import share_arguments, write_through_views
from generators.sampling.numbers import add_numbers
from generators.sampling.operations import DRAWN, OWN_WRITERS, add_operations
from generators.sampling.regions import add_regions
from generators.sampling.sample import sample
from generators.sampling.scans import add_carries
from generators.sampling.writes import add_read_by_strides

_GROUPS = {"operations": DRAWN, "regions": tuple(REGIONS), "changes": tuple(KINDS)}
_FORMS: dict[str, Callable[[Case, Choices], Case]] = {
    "integers": partial(add_integers, share=1.0),
    "shared_arguments": share_arguments,
    "odd_views": write_through_views,
    "carries": add_carries,
    "autocast_around": add_around,
    **{form: partial(add_dtypes, share=1.0, only=form) for form in WRITERS},
}
"""Programs that no single operation tells, by name."""
_NUMBERS = "numbers"
_FAMILIES = {
    "decayed_sum": "linear_attention",
    "flex_attention": "flex",
    "multihead_attention": "multihead",
    "transformer_encoder_layer": "transformer_layers",
    **dict.fromkeys(("polar", "view_as_complex", "view_as_real"), "llama"),
}
"""The families whose programs have an operation that few other programs have."""
_PARTS = frozenset({*_GROUPS, *DRAWN, *OWN_WRITERS, *REGIONS, *KINDS, *_FORMS, _NUMBERS})
_NEXT = 1_000_000_000  # added to an index for another draw
_TRIES = 500  # draws of a program, 7 ms each


class WithParts:
    """Draws programs that have one of these parts at least. Raises `UserError` for a part that no program has.

    abilities: those of a compiler of inference programs, if the programs are for one (`portability.py`)
    """

    def __init__(self, parts: Sequence[str], abilities: Collection[str] | None = None) -> None:
        self._wanted = parts
        for part in parts:
            if part not in _PARTS:
                near = get_close_matches(part, sorted(_PARTS), 3)
                hint = f"did you mean {' or '.join(near)}?" if near else "docs/cases.md lists regions and changes"
                raise UserError(f"--draw {part}: no drawn program has such an operation, region or change; {hint}")
        self._restrict(abilities)

    def _restrict(self, abilities: Collection[str] | None) -> None:
        for part in self._wanted:
            obstacles = [_find_obstacle_of(name, abilities) for name in _GROUPS.get(part, (part,))]
            if all(obstacles):
                raise UserError(f"--draw {part}: these subjects take no case with it: {OBSTACLES[obstacles[0]].words}")
        named = [name for part in self._wanted for name in _GROUPS.get(part, (part,))]
        self._parts = tuple(name for name in named if not _find_obstacle_of(name, abilities))
        self._abilities = abilities

    def sample(self, seed: int, index: int, *, abilities: Collection[str] | None = None, **form: object) -> Case:
        """Case number `index` of the seed. `form` are options of `generators.sampling.sample.sample`.

        abilities: as for the class, where they are known later
        """
        if self._abilities is None and abilities is not None:
            self._restrict(abilities)
        c = Choices(f"{seed}:{index}:parts")
        part = c.pick(self._parts)
        for attempt in range(_TRIES):
            family = _FAMILIES.get(part, "")
            number = index + attempt * _NEXT
            case = sample(seed, number, family=family, abilities=self._abilities, **form)  # type: ignore[arg-type]
            changed = _add(part, case, c)
            if changed is not None and (self._abilities is None or not find_obstacle(changed, self._abilities)):
                return changed
        return case


def _find_obstacle_of(part: str, abilities: Collection[str] | None) -> str:
    """The obstacle that every program with this part meets for a compiler with these abilities; "" without any."""
    met = {"strides": part == "as_strided", "regions": part in {*REGIONS} - TAKEN_REGIONS, "changes": part in KINDS}
    met |= {"flex": part == "flex_attention", "numbers": part == _NUMBERS}
    found = next((name for name, is_met in met.items() if is_met), "")
    return found if abilities is not None and found and OBSTACLES[found].ability not in abilities else ""


def list_parts(case: Case) -> frozenset[str]:
    """The operations, regions and changes of a case."""
    regions, changes = (region.kind for region in case.regions), (change.kind for change in list_changes(case))
    return frozenset({*(op.kind for op in case.ops), *regions, *changes})


def _add(part: str, case: Case, c: Choices) -> Case | None:
    """The case with the part; None if a few tries find no place for it."""
    if part in list_parts(case):
        return case
    if part in _FORMS:
        changed = _FORMS[part](case, c)
        return None if changed is case else changed
    if part == _NUMBERS:
        changed = case if case.numbers else add_numbers(case, c)
        return changed if changed.numbers else None
    if part in REGIONS:
        changed = add_regions(case, c, (part,))
    elif part in KINDS:
        changed = add_changes(case if case.calls else add_calls(case, c), c, (part,))
    elif part == "layer":
        changed = add_layers(case, c)
    elif part == "as_strided":
        changed = add_read_by_strides(case, c, 1.0)
    else:
        changed = add_operations(case, c, (part,)) if part in DRAWN else case
    return changed if part in list_parts(changed) else None
