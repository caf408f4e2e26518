"""Attention functions in the place of a case's own attention: every fault ends as its verdict, in its words."""

from pathlib import Path
from typing import Any

import pytest

from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, OutOfBounds, Refusal, Value, Write
from tests.check import planted_attention
from tests.check.client import Asker
from tests.check.failures import is_failure
from tests.check.sources import plain, source

HOME = planted_attention.__name__
ALLOCATED = "torch.empty_like at planted_attention.py:43"
ASSERTION = "planted_attention.py:108: assert q.shape[1] != k.shape[1]"
ATTEND = source("return attend(q, k, v, scale=0.25)")


def run_subject(
    worker: Asker, name: str, text: str = "", attention_stub: str | None = ATTEND, *, training: bool = False
) -> SubjectResult:
    named = f"{HOME}:{name}"
    return worker.one(
        text or plain(),
        named if named in planted_attention.SUBJECTS else name,
        training=training,
        attention_stub=attention_stub,
    )


def test_they_are_said_to_be_what_they_are(worker: Asker) -> None:
    hello = worker.hello
    assert set(planted_attention.SUBJECTS) <= set(hello.attention)
    assert {"triton", "sdpa_math", "sdpa_flash"} <= set(hello.attention)
    assert "passes" not in hello.attention and "sdpa_cudnn" not in hello.subjects


@pytest.mark.parametrize("training", [False, True])
def test_a_right_one_is_right(worker: Asker, training: bool) -> None:
    result = run_subject(worker, "right", training=training)
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING), result.failure
    assert result.dynamo_same is True


@pytest.mark.parametrize(
    ("name", "verdict", "kind", "fields"),
    [
        ("without_last_key", Verdict.WRONG_RESULT, "wrong_value", {"value": Value.of_result("out")}),
        (
            "too_far",
            Verdict.OUT_OF_BOUNDS,
            "out_of_bounds",
            {"writes": (Write(ALLOCATED, "before", 2), Write(ALLOCATED, "after", 3))},
        ),
        (
            "unwritten",
            Verdict.NONFINITE,
            "not_finite",
            {"value": Value.of_result("out"), "count": 128, "first": (0, 0, 16, 0)},
        ),
        ("scaling_in_place", Verdict.OUT_OF_BOUNDS, "out_of_bounds", {"writes": (Write("q", "itself", 2176),)}),
        ("only_float64", Verdict.SKIPPED, "not_taken", {"why": Refusal.UNSUPPORTED}),
        ("crashing", Verdict.RUNTIME_ERROR, "raised", {"error": "ValueError", "text": "no such tile"}),
        ("asserting", Verdict.RUNTIME_ERROR, "raised", {"error": "AssertionError", "text": "", "place": ASSERTION}),
        ("refusing", Verdict.SKIPPED, "not_taken", {"why": Refusal.UNSUPPORTED, "detail": f"it says {ASSERTION}"}),
        ("turned", Verdict.RUNTIME_ERROR, "raised", {"error": "TypeError"}),
        (
            "small_heads",
            Verdict.SKIPPED,
            "not_taken",
            {"why": Refusal.UNSUPPORTED, "detail": "it does not take head_dim 16, value_dim 16"},
        ),
    ],
)
def test_a_fault_ends_as_its_verdict(
    worker: Asker, name: str, verdict: Verdict, kind: str, fields: dict[str, Any]
) -> None:
    result = run_subject(worker, name)
    assert result.verdict == verdict, result.failure
    assert is_failure(result.failure, kind, **fields), result.failure


def test_a_backward_pass_is_watched_too(worker: Asker) -> None:
    assert run_subject(worker, "beside_dv").verdict in (Verdict.OK, Verdict.ROUNDING)
    result = run_subject(worker, "beside_dv", training=True)
    assert result.verdict == Verdict.OUT_OF_BOUNDS
    assert result.failure == OutOfBounds((Write("torch.zeros_like at planted_attention.py:83", "after", 7),))


def test_a_wrong_gradient_is_located(worker: Asker) -> None:
    result = run_subject(worker, "first_rows", training=True)
    assert result.verdict == Verdict.WRONG_GRADIENT
    where = result.where
    assert where is not None and where.value == Value.of_result("dq") and where.shape == (2, 4, 17, 16)
    assert where.ranges[:3] == (((0, 1),), ((1, 3),), ((0, 4),))


def test_what_it_has_no_keyword_for_is_not_asked_of_it(worker: Asker) -> None:
    causal = source("return F.scaled_dot_product_attention(q, k, v, scale=0.25, is_causal=True)")
    attention_stub = source('return attend(q, k, v, scale=0.25, causal="top_left")')
    assert run_subject(worker, "right", causal, attention_stub).verdict in (Verdict.OK, Verdict.ROUNDING)
    result = run_subject(worker, "without_last_key", causal, attention_stub)
    assert result.failure == NotTaken(Refusal.UNSUPPORTED, "it does not take the parameter causal")
    result = run_subject(worker, "right", causal, attention_stub=None)
    assert result.failure == NotTaken(Refusal.NO_CONTRACT)


@pytest.mark.parametrize(
    ("fill", "rows", "verdict"),
    [("-1e4", 0, Verdict.ROUNDING), ("-1e4", -1, Verdict.SKIPPED), ("-5.0", 0, Verdict.SKIPPED)],
)
def test_a_finite_fill_is_left_alone_where_it_can_be_told(
    worker: Asker, fill: str, rows: int, verdict: Verdict
) -> None:
    mask = f"torch.ones(S, S).tril({rows}).bool()"
    filled = source(
        f"scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(~rest[0], {fill})",
        "return scores.softmax(-1) @ v",
        extra=mask,
    )
    attention_stub = source(f"return attend(q, k, v, scale=0.25, mask=rest[0], fill={fill})", extra=mask)
    result = run_subject(worker, "right", filled, attention_stub)
    assert result.verdict in ((verdict, Verdict.OK) if verdict is Verdict.ROUNDING else (verdict,)), result.failure


@pytest.mark.parametrize("layout", ["B, S, H, D", "B, H, D, S"])
@pytest.mark.parametrize("name", ["right", "sdpa_math", "sdpa_flash"])
def test_any_strides_and_expanded_keys(worker: Asker, layout: str, name: str) -> None:
    axes = "1, 2" if layout.startswith("B, S") else "2, 3"
    lines = [f"q, k, v = (x.transpose({axes}) for x in (q, k, v))", "k = k[:, :1].expand(B, H, S, D)"]
    text = source(*lines, "return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v", layout=layout)
    attention_stub = source(*lines, "return attend(q, k, v, scale=0.25)", layout=layout)
    result = run_subject(worker, name, text, attention_stub, training=True)
    backends = (Verdict.SKIPPED,) if name == "sdpa_flash" and axes == "2, 3" else ()
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING, *backends), result.failure


def test_text_around_it_that_needs_other_strides_accuses_nobody(worker: Asker) -> None:
    attention_stub = source("return attend(q, k, v, scale=0.25).transpose(1, 2).view(B, H, S, D)")
    result = run_subject(worker, "right", plain(), attention_stub)
    assert result.verdict == Verdict.SKIPPED and is_failure(result.failure, "not_taken", why=Refusal.TEXT_FAILS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("boastful", "unknown capability 'max_heads': there are dtypes, head_dims, "),
        ("vague", "dtypes: expected a list, got 'bfloat16'"),
    ],
)
def test_capabilities_that_mean_nothing_are_refused(name: str, reason: str) -> None:
    with pytest.raises(SubjectError) as error:
        find(f"{HOME}:{name}")
    assert str(error.value).startswith(f"subject '{HOME}:{name}': {reason}")


def test_the_order_of_the_first_parameters_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swapped.py").write_text("def attention(q, v, k, *, scale):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="the order must be q, k, v"):
        find("swapped:attention")
