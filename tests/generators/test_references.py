"""Every field that names something in a case says so: other names give another spelling of the same program."""

from pathlib import Path

import pytest

from corpus import entry
from generators.program.case import Case
from generators.program.references import list_dims, rename
from generators.program.type_check import check
from generators.sampling.choices import Choices
from generators.sampling.mutations import MUTATIONS
from generators.sampling.sample import sample

KNOWN = Path(__file__).parents[2] / "corpus" / "known"


def list_cases() -> list[Case]:
    drawn = [sample(54, index) for index in range(40)]
    called = [MUTATIONS["calls"].draw(case, Choices(case.id)) for case in drawn]
    changed = [MUTATIONS["changes"].draw(case, Choices(case.id)) for case in called]
    return [*called, *changed, *(MUTATIONS["regions"].draw(case, Choices(case.id)) for case in drawn)]


def rename_all(case: Case) -> None:
    values = [*(item.name for item in case.inputs), *(op.name for op in case.ops)]
    names = {name: f"value{number}" for number, name in enumerate(values)}
    names |= {name: f"X{number}" for number, name in enumerate(case.sizes)}
    renamed = rename(case, names)
    types = {names[name]: rename(kind, names) for name, kind in check(case).items()}
    assert check(renamed) == types
    assert list_dims((renamed.inputs, renamed.ops)) <= {*renamed.sizes}
    assert rename(renamed, {new: old for old, new in names.items()}) == case


def test_cases_of_the_corpus_can_be_renamed() -> None:
    entries = entry.load_directory(KNOWN)
    assert len(entries) > 50
    for known in entries.values():
        rename_all(known.case)


@pytest.mark.samples
def test_drawn_cases_with_calls_changes_and_regions_can_be_renamed() -> None:
    cases = list_cases()
    assert all(any(getattr(case, part) for case in cases) for part in ("calls", "setup", "regions", "contracts"))
    for case in cases:
        rename_all(case)
