"""Reports about a broken relation between two calls of an attention function, and the scripts that show it."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile, entry
from corpus.entry import Entry
from fuzz.check.oracle.attention.relation_table import RELATIONS
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import RelationBroken
from fuzz.protocol.render import MEANINGS
from tests.triage.conftest import ran
from tests.triage.test_kernel import ATTENTION, PLANTED
from tests.triage.test_report import report
from triage.attribution.ablation import Ablation
from triage.report.build import write_report
from triage.report.relations import show_relation

EVERYTHING = """
case_format: 1
dims: {B: 2, H: 4, S: 5, T: 7, D: 8}
inputs:
  q: {shape: [B, H, S, D], dtype: float32, values: {seed: 0}}
  k: {shape: [B, 2, T, D], dtype: float32, values: {seed: 1}}
  v: {shape: [B, 2, T, D], dtype: float32, values: {seed: 2}}
  m: {shape: [S, T], dtype: bool, values: {kind: random, seed: 3, scale: 0.8}}
  b: {shape: [H, S, T], dtype: float32, values: {seed: 4}}
  a: {shape: [H], dtype: float32, values: {seed: 5}}
  sink: {shape: [H], dtype: float32, values: {seed: 6}}
ops:
  - {name: out, op: mul, args: [q], other: 1.0}
returns: [out]
contracts:
  - {q: q, k: k, v: v, output: out, scale: 0.25, mask: m, bias: b, softcap: 5.0}
"""


def broken(relation: str, verdict: Verdict = Verdict.WRONG_RESULT) -> SubjectResult:
    failure = RelationBroken(relation, "rounding", 3, 7, (0,), 1.0, 2.0, ratio=9.0, limit=4.0)
    return SubjectResult("", verdict, failure=failure)


def test_every_relation_has_a_meaning_and_code() -> None:
    assert RELATIONS.keys() == MEANINGS.keys()
    assert all(show_relation(relation).startswith("def ") for relation in MEANINGS)


@pytest.mark.worker
def test_a_report_shows_both_calls_and_says_what_follows(tmp_path: Path) -> None:
    subject, out = f"{PLANTED}:right_once", tmp_path / "out"
    case = replace(casefile.loads(ATTENTION), mode="inference")
    done = report(entry.save(Entry(case), tmp_path), "--out", out, "--subject", subject)
    assert done.returncode == 0, done.stderr
    (relation,) = (name for name in MEANINGS if done.stdout.splitlines()[0].endswith(f"by the relation {name}"))
    text = (out / "report.md").read_text()
    assert relation in text and MEANINGS[relation] in text
    assert f"```python\n{show_relation(relation)}\n```\n" in text
    assert "Which sizes fail" not in text
    assert "exits with 1 if the bug shows (here: 1)" in text


def test_a_backend_of_pytorch_is_reported_to_pytorch_in_its_words(tmp_path: Path) -> None:
    case = casefile.loads(EVERYTHING)
    result = replace(
        broken("-q and -scale", Verdict.NONFINITE), subject="sdpa_flash", numbers={"compiled_error": 2.5e-07}
    )
    right = replace(result, verdict=Verdict.OK, failure=None)
    hello = Hello("2.13.0", "3.11", "cpu", "g++", 1, 1.0)
    ablation = Ablation(hello, {"eager": right, "sdpa_math": right, "sdpa_flash": result}, "sdpa_flash")
    report = write_report(Entry(case), ablation, ran(), triton="3.7.1")
    assert (
        report.title
        == "scaled_dot_product_attention, FLASH_ATTENTION backend: NaN or infinity, by the relation -q and -scale"
    )
    assert (bool(report.values["upstream"]), report.values["interpreted"], report.values["place"]) == (True, False, "")
    assert report.values["table"][-1][3] == "-" and report.values["table"][-1][2].startswith("2.5e-07 (")
    assert report.search == "scaled_dot_product_attention flash NaN"
