"""Checks that every row of each table passes: it is drawn, emits programs that run, survives a file, shrinks, has docs.

Operations have a module of their own, tests/generators/test_operations.py; tests/generators/test_families.py has
families of models, tests/generators/test_contracts.py options of attention, tests/check/test_distributions.py masks.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from corpus.casefile import dumps, loads
from corpus.causes import MechanismKind, Part, Stage
from corpus.shrink import shrink
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question, ask_or_raise
from fuzz.attribution.edits import EDITS
from fuzz.campaign.schedule import choose_subjects
from fuzz.check.run.subject_builder import available, find
from fuzz.experiments import EXPERIMENTS, Edit, Experiment, OtherSubject, Outcome, Trial
from fuzz.protocol import Verdict
from fuzz.subjects import SUBJECTS
from generators.program.changes import KINDS
from generators.program.regions import REGIONS
from generators.program.settings import list_available
from generators.program.type_check import check
from generators.sampling.choices import Choices
from generators.sampling.parts import WithParts, list_parts
from generators.sampling.settings import draw_settings
from tests.programs import program

PARTS = [*(("Regions", name) for name in REGIONS), *(("Changes", name) for name in KINDS)]
AVAILABLE = {device: list_available(torch.__version__, device) for device in ("cpu", "cuda")}
PLAIN = loads(program("S: 3", {"x": "S; values: {}"}, "out = relu x"))
RIGHT = (Verdict.OK, Verdict.ROUNDING, Verdict.EAGER_SUSPECT, Verdict.ILL_CONDITIONED, Verdict.CONVENTION)


@cache
def read_section(title: str) -> set[str]:
    """The names in code spans of a section of docs/cases.md."""
    text = Path("docs/cases.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_]+)`", text))


@pytest.mark.samples
@pytest.mark.parametrize(("table", "name"), PARTS)
def test_a_region_or_change_is_drawn_runs_survives_a_file_and_goes_where_it_is_not_needed(
    shared: Evaluator, table: str, name: str
) -> None:
    case = WithParts([name]).sample(3, 0)
    assert name in list_parts(case) and name in read_section(table)
    check(case)
    assert loads(dumps(case)) == case
    assert ask_or_raise(shared, Question(case, ("eager",))).verdict in RIGHT
    assert name not in list_parts(shrink(case, lambda _: True, is_readable=False)[-1])


@pytest.mark.parametrize(("device", "name"), [(d, name) for d in ("cpu", "cuda") for name in AVAILABLE[d]])
def test_a_setting_is_drawn_survives_a_file_and_goes_where_it_is_not_needed(device: str, name: str) -> None:
    row = AVAILABLE[device][name]
    rows = {needed: replace(AVAILABLE[device][needed], weight=0.0) for needed, _ in row.needs} | {name: row}
    case = replace(PLAIN, mode="training" if row.training else "inference")
    drawn = [draw_settings(case, Choices(f"{name} {number}"), rows, share=1.0) for number in range(30)]
    assert {dict(one.settings)[name] for one in drawn} == {*row.values} and row.effect
    check(drawn[0])
    assert loads(dumps(drawn[0])) == drawn[0] != case
    assert shrink(drawn[0], lambda _: True, is_readable=False)[-1].settings == ()


@pytest.mark.parametrize("row", EXPERIMENTS.values(), ids=lambda row: row.id)
def test_an_experiment_names_what_there_is_and_an_outcome_that_shows_its_fault(row: Experiment) -> None:
    assert row.label and "\n" not in row.label
    assert not row.stage or Stage(row.stage)
    assert not row.mechanism or MechanismKind(row.mechanism)
    assert not row.part or row.part in {*Part}
    assert any(map(row.flips, Outcome)) and not row.flips(Outcome.DOES_NOT_APPLY)
    assert not isinstance(row.change, OtherSubject) or row.change.name in SUBJECTS
    assert Trial(row.id).experiment == row.id


def test_every_function_that_edits_a_case_has_a_row() -> None:
    assert EDITS.keys() <= {row.id for row in EXPERIMENTS.values() if isinstance(row.change, Edit)}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_is_built_or_named_as_missing_and_has_a_share_where_campaigns_run_it(name: str) -> None:
    spec = SUBJECTS[name]
    if "cpu" in spec.devices and name in available():
        assert find(name).name == name
    for device in spec.devices:
        assert (name in choose_subjects([], device)) == (device in spec.default)
    assert 0.0 <= spec.share < 1.0
