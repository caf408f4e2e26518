"""The place of a root cause."""

import re
from dataclasses import replace

import pytest

from corpus.causes import Mechanism, MechanismKind, Stage
from corpus.entry import Entry
from fuzz.attribution.locate import locate
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from fuzz.experiments import Outcome, Trial, Tried
from fuzz.protocol import StepsTaken, SubjectResult, Verdict
from fuzz.protocol.places import LocatedBy, Place
from generators.program.case import Case
from tests.fake_asker import FakeAsker
from triage.report.wording import describe_place, link_source, quote_source

WRONG = SubjectResult("passes", Verdict.WRONG_RESULT)
CAUSE = RootCause("inductor", Stage.GRAPH_PASSES, "fold", Mechanism(MechanismKind.MEMORY))
FOLD = Place("fx_passes/a.py", 10, "fold", LocatedBy.LEFT_OUT)


def find(case: Case, *, cause: RootCause = CAUSE, result: SubjectResult = WRONG) -> tuple[Place, ...]:
    """The places if every program fails. A worker leaves out the pass `fold`."""

    def judge(_case: Case, _subject: str, *trials: Trial) -> SubjectResult:
        return replace(result, observations=(StepsTaken(3, "other", (FOLD,)),) if trials else ())

    return locate(Study(FakeAsker(judge), Entry(case), "passes", result), cause).places


def test_a_pass_is_named_by_its_function_and_a_stage_alone_by_none(case: Case) -> None:
    assert find(case) == (FOLD,)
    assert find(case, cause=replace(CAUSE, part="")) == ()


@pytest.mark.parametrize("file", ["_refs/__init__.py", "fx_passes/a.py"])
def test_a_compile_error_is_where_the_step_raises_or_else_the_step(case: Case, file: str) -> None:
    raised = Place(file, 7, "view", LocatedBy.RAISED)
    result = SubjectResult("passes", Verdict.COMPILE_ERROR, raised_at=raised)
    assert find(case, result=result) == ((raised, FOLD) if file == FOLD.file else (FOLD, raised))
    assert find(case, cause=replace(CAUSE, part=""), result=result) == (raised,)


def test_an_operation_of_aten_has_no_line(case: Case) -> None:
    cause = replace(CAUSE, stage=Stage.OPERATION, part="aten.mm", evidence=(Tried("eager", "", Outcome.FAILS_ALIKE),))
    (place,) = find(case, cause=cause)
    assert (place.function, place.found, place.line) == ("aten.mm", LocatedBy.KERNEL, 0)


@pytest.mark.parametrize(
    ("torch", "file", "link"),
    [
        ("2.15.0", "_inductor/ir.py", "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/ir.py#L3"),
        ("2.15.0+cu132", "_inductor/ir.py", "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/ir.py#L3"),
        ("2.16.0.dev20261101", "_inductor/ir.py", ""),
        ("2.16.0a0+git1234", "_inductor/ir.py", ""),
        ("2.15.0", "include/ATen/a.h", "https://github.com/pytorch/pytorch/blob/v2.15.0/aten/src/ATen/a.h#L3"),
        ("2.15.0", "sitecustomize.py", ""),
    ],
)
def test_only_lines_of_a_release_have_an_address(torch: str, file: str, link: str) -> None:
    place = Place(file, 3, "make", LocatedBy.LEFT_OUT)
    described = describe_place(place, torch)
    assert f"]({link})" in described if link else "](" not in described


def test_places_that_a_person_named_become_links_to_the_release() -> None:
    linked = link_source("Read in `torch/__init__.py:3` and torch/fx/node.py.", "2.15.0")
    assert [*re.findall(r"\((https\S+)\)", linked)] == [
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/__init__.py#L3",
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/fx/node.py",
    ]
    assert "https" not in link_source("Read in `torch/__init__.py:3`.", "2.16.0a0")


def test_a_report_quotes_the_line_where_the_source_is_readable(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("torch")
    (home / "ir.py").write_text("".join(f"line {number}\n" for number in range(1, 9)))
    place = Place("ir.py", 2, "make", LocatedBy.LEFT_OUT)
    assert quote_source(place, str(home)).splitlines() == ["  1 line 1", "> 2 line 2", "  3 line 3", "  4 line 4"]
    assert quote_source(replace(place, file="absent.py"), str(home)) == quote_source(place, "") == ""
