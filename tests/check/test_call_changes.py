"""Bugs of one attention function are told apart by what makes a wrong call right."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from fuzz.bug_identity import Symptom
from fuzz.campaign.investigate import is_same_failure
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.rewrites import CALL, WrongRewrite
from tests.check.in_process import run_subject
from tests.check.planted_attention import right
from tests.check.sources import source


def with_three_bugs(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: str | None = None
) -> Tensor:
    """Ignores `causal`, all but the first 16 features of q, and a mask."""
    return right(q[..., :16], k[..., :16], v, scale=scale)


CALLS: dict[str, dict[str, Any]] = {
    "causal": {"call": 'attend(q, k, v, scale=0.25, causal="top_left")'},
    "mask": {"call": "attend(q, k, v, scale=0.25, mask=torch.ones(S, S, dtype=torch.bool).tril())"},
    "head_dim": {"call": "attend(q, k, v, scale=0.25)", "dims": "2, 4, 17, 24"},
}
PLAIN = "return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"
CAUSAL = (
    "s = q @ k.mT * 0.25; return s.masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ v"
)


def run(name: str, *, larger: bool = False) -> SubjectResult:
    given = CALLS[name]
    dims = given.get("dims", "2, 4, 17, 16")
    if larger:
        dims = dims.replace("2, 4, 17", "1, 2, 40")
    text = source(*(CAUSAL if name != "head_dim" else PLAIN).split("; "), dims=dims)
    return run_subject(with_three_bugs, text=text, attention_stub=source(f"return {given['call']}", dims=dims))


def symptom(result: SubjectResult) -> Symptom:
    return Symptom.of(result, frozenset(), attention_only=True)


@pytest.mark.parametrize("name", CALLS)
def test_what_makes_a_wrong_call_right_is_its_cause(name: str) -> None:
    result = run(name)
    assert result.verdict is Verdict.WRONG_RESULT
    assert [(one.pattern, one.cause) for one in result.rewrites] == [(CALL, name)]


def test_three_bugs_of_one_function_explain_themselves_and_no_other() -> None:
    found = {name: symptom(run(name)) for name in CALLS}
    others = {name: symptom(run(name, larger=True)) for name in CALLS}
    for one in CALLS:
        assert [name for name in CALLS if found[one].explains(others[name])] == [one]


def test_a_call_that_shows_several_bugs_may_shrink_to_any_of_them() -> None:
    one, other = run("causal"), run("head_dim")
    several = replace(other, rewrites=(WrongRewrite(CALL, wrong={"causal": ("dropped",), "head_dim": ("16",)}),))
    assert is_same_failure(other, several, exact=True, attention_only=True)
    assert not is_same_failure(other, one, exact=True, attention_only=True)
