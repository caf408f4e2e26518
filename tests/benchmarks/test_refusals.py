"""The list of refusals is complete: each place that turns a case away has a reason, and the page tells all of them."""

import pytest

from benchmarks.refusals.draws import count_refusals
from benchmarks.refusals.operations import ask_torch
from benchmarks.refusals.page import PAGE, read_measured, render
from benchmarks.refusals.places import all_places, list_places
from generators.errors import CaseError, require
from generators.reasons import Reason
from generators.sampling.sample import sample

SOURCE = """
def check(case):
    require(case, "a")
    require(case, "b", Reason.LEAF)
    try:
        raise CaseError("c", reason=Reason.SIZE)
    except CaseError as error:
        raise CaseError(f"d: {error}") from None

def choose(case):
    reason = {"x": Reason.HOOKED, "y": Reason.FROZEN}[case]
    require(case, "e", reason)
"""


def test_places_are_found_with_their_reasons() -> None:
    found = [(one.text, one.reasons) for one in list_places(SOURCE, "program/writes.py")]
    told = (Reason.HOOKED, Reason.FROZEN)
    assert found == [("'a'", ()), ("'b'", (Reason.LEAF,)), ("'c'", (Reason.SIZE,)), ("'e'", told)]
    assert next(list_places(SOURCE, "program/ops/rules.py")).reasons == (Reason.TYPES,)


def test_every_place_that_turns_a_case_away_has_a_reason() -> None:
    assert not [f"{one.path}:{one.first}: {one.text}" for one in all_places() if not one.reasons]


def test_every_reason_has_a_place() -> None:
    assert {*Reason} == {reason for one in all_places() for reason in one.reasons}


def test_the_page_is_made_of_the_table_and_the_saved_counts() -> None:
    assert render(read_measured()) in PAGE.read_text(), "run `python -m benchmarks.refusals`"


def test_a_draw_counts_what_turned_candidates_away() -> None:
    counts = count_refusals(lambda index: sample(1, index, abilities=()), 20)
    assert counts.candidates["TYPES"] >= counts.programs["TYPES"] > 0
    assert set(counts.candidates) <= {*Reason.__members__, *(one for one in counts.candidates if "obstacle" in one)}


def test_an_error_tells_its_reason() -> None:
    with pytest.raises(CaseError) as caught:
        require(False, "no", Reason.LEAF)
    assert caught.value.row is Reason.LEAF


@pytest.mark.samples
def test_a_rule_of_operations_that_is_narrower_than_torchs_is_listed() -> None:
    listed = {key for key, one in read_measured()["operations"]["places"].items() if one["taken"]}
    found = {place.key for place, one in ask_torch(1).items() if one.taken}
    assert found <= listed, "run `python -m benchmarks.refusals --operations`"
