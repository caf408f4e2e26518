"""Fused programs judged as a call: rounding by design is tried, and nothing ends the worker."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import config

from fuzz.check.attention.pure_attention import PureAttention
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import Program, execute
from fuzz.check.subject_builder import find
from fuzz.protocol import CASTS, SubjectResult, Verdict
from fuzz.protocol.failures import NotFinite
from tests.check.in_process import run_subject
from tests.check.sources import source

FUSED = "return torch.matmul(torch.matmul(q, k.transpose(-2, -1)).mul(0.25).softmax(dim=-1), v)"
WRONG = Judgement(Verdict.WRONG_RESULT, NotFinite("out", 1, (0,)))


def under_passes(monkeypatch: pytest.MonkeyPatch, judge: Callable[..., Judgement]) -> SubjectResult:
    monkeypatch.setattr("fuzz.check.check.judge_call", judge)
    torch._dynamo.reset()
    result = run_subject(find("passes"), text=source(FUSED, dtype="bfloat16"), dtype="bfloat16")
    assert any(name.startswith("_sfdp_pattern") for name in result.fired)
    return result


def test_a_wrong_call_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert under_passes(monkeypatch, lambda *_: WRONG).verdict is Verdict.WRONG_RESULT


def test_one_that_is_right_with_keep_casts_is_by_design(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: Any) -> Judgement:
        return Judgement(Verdict.OK) if config.emulate_precision_casts else WRONG

    result = under_passes(monkeypatch, judge)
    assert result.verdict is Verdict.PRECISION_POLICY
    assert (result.failure, result.excuse) == (WRONG.failure, CASTS)


def test_no_memory_left_to_judge_it_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: Any) -> Judgement:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    assert under_passes(monkeypatch, judge).verdict in (Verdict.OK, Verdict.ROUNDING)


@pytest.mark.parametrize(
    "line", ["k[int(q.flatten()[-1])]", "torch.zeros(2).reshape(int(q.flatten()[1].clamp(max=9)))", "[].index(q)"]
)
def test_text_that_looks_at_numbers_is_no_bare_attention(line: str) -> None:
    # The numbers are places when it is tried.
    text = source(f"extra = {line} if q.dtype == torch.float64 else 0", "return attend(q, k, v, scale=0.25)")
    plain = source("return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v")
    program = Program(plain)
    module = program.module(training=False)
    run = execute(module, module, [program.inputs()], training=False)
    assert PureAttention(text, "cpu", training=False).call(run, {}) is None
