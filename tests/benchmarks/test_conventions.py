"""Questions about conventions can be told apart by their answers, and the recorded answers still hold."""

import json
import platform
from itertools import combinations

import pytest

from benchmarks.conventions.__main__ import MEASURED, PAGE, ask, format_page
from benchmarks.conventions.implementations import IMPLEMENTATIONS, Implementation
from benchmarks.conventions.questions import QUESTIONS, Question, are_apart

RECORDED = json.loads(MEASURED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_no_result_fits_two_answers(question: Question) -> None:
    assert len(question.answers) > 1
    for (_, first), (_, second) in combinations(question.answers.items(), 2):
        assert are_apart(first, second)
    for answer, result in question.answers.items():
        assert question.answer(result) == answer


def test_questions_have_names_of_their_own() -> None:
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS)
    known = {implementation.name for implementation in IMPLEMENTATIONS}
    assert all(question.said.keys() <= known for question in QUESTIONS)


def test_the_page_is_what_was_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(RECORDED)
    for column in RECORDED.values():
        assert list(column["answers"]) == [question.text for question in QUESTIONS]


@pytest.mark.samples
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
def test_the_recorded_answers_hold(implementation: Implementation) -> None:
    column = RECORDED[implementation.name]
    here = implementation.is_installed and (implementation.tell_versions(), platform.machine())
    if here != (column["versions"], column["processor"]):
        pytest.skip(f"recorded with {column['versions']} on {column['processor']}")
    assert {question.text: ask(implementation, question) for question in QUESTIONS} == column["answers"]


@pytest.mark.parametrize("question", [one for one in QUESTIONS if one.said], ids=lambda question: question.text)
def test_documentation_is_quoted_word_for_word(question: Question) -> None:
    for implementation in IMPLEMENTATIONS:
        words = question.said.get(implementation.name)
        if words is not None and implementation.is_installed:
            assert implementation.document is not None
            assert words in " ".join(implementation.document().split())
