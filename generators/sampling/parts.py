"""Draws programs that have a given part: an operation, a region, a change, or a form that no operation tells."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from generators.errors import UserError
from generators.program.case import Case
from generators.program.changes import KINDS, list_changes
from generators.program.portability import OBSTACLES, TAKEN_REGIONS, find_obstacle
from generators.program.regions import REGIONS
from generators.sampling.choices import Choices
from generators.sampling.mutations import MUTATIONS
from generators.sampling.operations import OWN_WRITERS
from generators.sampling.sample import sample

_GROUPS = {name: tuple(row.kinds) for name, row in MUTATIONS.items() if row.kinds}
_OF_KIND = {kind: name for name, kinds in _GROUPS.items() for kind in kinds}
"""The mutation that adds an operation, a region or a change."""
_FAMILIES = {
    "decayed_sum": "linear_attention",
    "flex_attention": "flex",
    "multihead_attention": "multihead",
    "transformer_encoder_layer": "transformer_layers",
    **dict.fromkeys(("polar", "view_as_complex", "view_as_real"), "llama"),
}
"""The families whose programs have an operation that few other programs have."""
_PARTS = frozenset({*MUTATIONS, *_OF_KIND, *OWN_WRITERS})
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
    met |= {"flex": part == "flex_attention", "numbers": part == "numbers"}
    found = next((name for name, is_met in met.items() if is_met), "")
    return found if abilities is not None and found and OBSTACLES[found].ability not in abilities else ""


def list_parts(case: Case) -> frozenset[str]:
    """The operations, regions and changes of a case."""
    regions, changes = (region.kind for region in case.regions), (change.kind for change in list_changes(case))
    return frozenset({*(op.kind for op in case.ops), *regions, *changes})


def _add(part: str, case: Case, c: Choices) -> Case | None:
    """The case with the part; None if a few tries find no place for it."""
    name = _OF_KIND.get(part, part)
    if part in list_parts(case) or name not in MUTATIONS:
        return case if part in list_parts(case) else None
    if name == "changes":
        case = case if case.calls else MUTATIONS["calls"].draw(case, c)
    changed = MUTATIONS[name].draw(case, c, (part,) if name != part else ())
    is_told = name != part or part in OWN_WRITERS
    return changed if changed != case and (not is_told or part in list_parts(changed)) else None
