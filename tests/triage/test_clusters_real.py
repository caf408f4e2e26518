"""Two findings of torch 2.13.0 that look nothing alike, and one mistake of the pattern matcher."""

from pathlib import Path

import pytest

from corpus import casefile, ledger
from corpus import entry as corpus_entry
from corpus.causes import MechanismKind
from corpus.entry import Entry, Found
from fuzz.cli import call
from tests.triage.conftest import SOFTMAX_OVER_QUERIES
from triage.cluster import __main__ as command

pytestmark = pytest.mark.worker

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
