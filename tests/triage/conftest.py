"""Cases to report: a real bug of torch 2.13.0, and ladders as a worker would give them."""

from dataclasses import replace
from subprocess import CompletedProcess

import pytest

from corpus import casefile
from corpus.entry import Entry
from fuzz.attribution.ablation import AOT_EAGER, DYNAMIC, DYNAMO, EAGER, INDUCTOR, NO_PATTERNS, PASSES, Ablation
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import Value, WrongValue
from generators.program.case import Case
from tests.replay.conftest import FakePython, fake_python
from triage import script_runs
from triage.report.build import Evidence

__all__ = ["FakePython", "fake_python"]

collect_ignore = ["golden"]

SOFTMAX_OVER_QUERIES = """
case_format: 1
dims: {B: 2, H: 4, S: 8, D: 16}
inputs:
  q: {shape: [B, H, S, D], dtype: float32, values: {seed: 0}}
  k: {shape: [B, H, S, D], dtype: float32, values: {seed: 1}}
  v: {shape: [B, H, S, D], dtype: float32, values: {seed: 2}}
ops:
  - {name: kt, op: transpose, args: [k], dim0: -2, dim1: -1}
  - {name: products, op: matmul, args: [q, kt]}
  - {name: scores, op: div, args: [products], other: 4.0}
  - {name: weights, op: softmax, args: [scores], dim: -2}
  - {name: out, op: matmul, args: [weights, v]}
returns: [out]
"""
NUMBERS = {"compiled_error": 0.97, "eager_error": 2.2e-07, "scale": 2.3, "rows_wrong": 64.0, "rows_total": 64.0}
OFF = WrongValue(Value("output", 0), (1, 0), error=0.9, ratio=9e4, limit=32.0, eager_error=2e-7)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say of the environment nothing but torch's version: asking torch takes seconds."""
    monkeypatch.setattr(script_runs, "collect", lambda _python, torch: f"PyTorch version: {torch}")


@pytest.fixture
def case() -> Case:
    return casefile.loads(SOFTMAX_OVER_QUERIES)


@pytest.fixture
def entry(case: Case) -> Entry:
    return Entry(case)


def ablation(**verdicts: Verdict) -> Ablation:
    """The bug above, with other verdicts for the stages named."""
    found = dict.fromkeys((EAGER, DYNAMO, AOT_EAGER, "no_patterns"), Verdict.OK)
    found |= dict.fromkeys((PASSES, INDUCTOR, DYNAMIC), Verdict.WRONG_RESULT) | verdicts
    found[NO_PATTERNS] = found.pop("no_patterns")
    result = SubjectResult(
        "", Verdict.OK, numbers=NUMBERS, applied_rewrites=("_sfdp_pattern_1_inference", "pointless_view")
    )
    stages = {name: replace(result, subject=name, verdict=v, failure=OFF) for name, v in found.items()}
    return Ablation(Hello("2.13.0", "3.11", "cpu", "g++", 1), stages, INDUCTOR)


def ran(log: str = "") -> Evidence:
    """A repro.py that showed the bug."""
    return Evidence(CompletedProcess((), 1, "output 0: values up to 2.3\n", log))
