"""Findings that look nothing alike and are the same bug, and findings that look alike and are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile, ledger
from corpus import entry as corpus_entry
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.entry import Entry, Found
from corpus.ledger import Bug, Ledger
from fuzz.ask.worker_config import WorkerConfig
from fuzz.cli import call
from tests.triage.conftest import SOFTMAX_OVER_QUERIES
from triage.cluster import __main__ as command
from triage.cluster.clusters import cluster, record
from triage.cluster.findings import attribute_findings, gather

pytestmark = pytest.mark.worker

WRITTEN = Path(__file__).parents[2] / "corpus" / "known" / "indexed-write-loses-strides.case.yaml"

BATCHES_FOR_FEATURES = """
case_format: 1
dims: {B: 2, C: 1, S: 2, D: 2}
inputs:
  q: {shape: [C, S, C, D], dtype: float32, values: {seed: 0}}
  k: {shape: [D, S, C, B], dtype: float32, values: {seed: 1}}
  v: {shape: [C, S, B, D], dtype: float32, values: {seed: 2}}
ops:
  - {name: kt, op: permute, args: [k], dims: [2, 1, 0, 3]}
  - {name: products, op: matmul, args: [q, kt]}
  - {name: scores, op: mul, args: [products], other: 0.5}
  - {name: weights, op: softmax, args: [scores]}
  - {name: out, op: matmul, args: [weights, v]}
returns: [out]
"""


@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
@pytest.mark.usefixtures("one_worker")
def test_the_softmax_over_another_axis_and_a_permutation_are_one_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (SOFTMAX_OVER_QUERIES, BATCHES_FOR_FEATURES):
        corpus_entry.save(
            Entry(casefile.loads(text), found=Found("wrong_result", "inductor", torch="2.13.0")), tmp_path / "found"
        )
    assert (
        call(command.cluster, "triage.cluster", ["found", "--ledger", "ledger.yaml", "--update"]) == 1
    )  # nobody decided about it yet
    (bug,) = ledger.load(tmp_path / "ledger.yaml").bugs
    assert len(bug.findings) == 2 and {cause.mechanism for cause in bug.causes} == {MechanismKind.CONSTANTS_IGNORED}


NORMALISED = """
case_format: 1
dims: {B: 2, S: 3, D: 4}
inputs:
  x: {shape: [B, S, D], dtype: float32, values: {seed: 0}}
  mean: {shape: [D], dtype: float32, values: {seed: 1}}
  var: {shape: [D], dtype: float32, values: {kind: uniform, seed: 2}}
ops:
  - {name: transposed, op: transpose, args: [x], dim0: 1, dim1: 2}
  - {name: out, op: batch_norm, args: [transposed, mean, var], statistics: running}
returns: [out]
"""


@pytest.mark.usefixtures("one_worker")
def test_a_bug_with_the_cause_of_a_listed_bug_is_listed_apart_if_experiments_disagree(tmp_path: Path) -> None:
    found = Found("metadata", "inductor", torch="2.13.0")
    paths = [corpus_entry.save(Entry(casefile.loads(NORMALISED), found=found), tmp_path), WRITTEN]
    key = CauseKey("aot", Stage.DYNAMO, Part.DECOMPOSITIONS, MechanismKind.STRIDES)
    written = Bug("written", "loses strides", cause=key, decided_by=(("aot_eager", ()), ("written_apart", ())))
    listed = Ledger(tmp_path / "ledger.yaml", (replace(written, also=(replace(key, part=""),)),))
    made = cluster(attribute_findings(gather(paths), WorkerConfig(), ledger=listed), listed)
    assert {one.bug and one.bug.id: one.example.entry.case.ops[-1].kind for one in made} == {
        "written": "index_copy_",
        None: "batch_norm",
    }
    (normalised,) = (one.example.id for one in made if one.bug is None)
    record(listed, made)
    (*_, bug) = ledger.load(listed.path).bugs
    assert bug.findings == (normalised,) and bug.cause not in listed.bugs[0].causes
