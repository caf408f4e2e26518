"""Cases on two ranks: right ones pass; faults are found, named and shrunk; a lost rank costs no more than its case."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from benchmarks.attribution import planted
from corpus import casefile
from corpus.entry import Entry, Expectation, load
from corpus.shrink import shrink
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import AnswerCache, Asker, Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.attribute import attribute
from fuzz.bug_identity import is_same_failure
from fuzz.check.torch_api.whole_operations import WholeOperations
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, ProcessLost, Raised, Refusal
from generators.program.case import Case
from tests.evaluator.test_worker_process import is_gone

pytestmark = pytest.mark.worker

ATTENTION = casefile.loads("""
case_format: 1
dims: {B: 2, H: 2, S: 4, D: 8, E: 6}
inputs:
  q: {shape: [B, H, S, D], dtype: float32, values: {seed: 0}, shard: 1}
  k: {shape: [B, H, S, D], dtype: float32, values: {seed: 1}, shard: 2}
  v: {shape: [B, H, S, D], dtype: float32, values: {seed: 2}, shard: 1}
  w: {shape: [D, E], dtype: float32, values: {seed: 3}, shard: 0, parameter: true}
mode: training
ops:
  - {name: kt, op: transpose, args: [k]}
  - {name: scores, op: matmul, args: [q, kt]}
  - {name: probs, op: softmax, args: [scores], dim: 3}
  - {name: heads, op: matmul, args: [probs, v]}
  - {name: out, op: matmul, args: [heads, w]}
returns: [out, probs]
""")
EMBEDDING = casefile.loads("""
case_format: 1
dims: {T: 4, D: 2}
inputs:
  places: {shape: [T], dtype: int64, values: {kind: permutation, seed: 0}}
  table: {shape: [T, D], dtype: float32, values: {seed: 1}, parameter: true, shard: 0}
ops:
  - {name: rows, op: embedding, args: [places, table]}
  - {name: out, op: exp, args: [rows]}
returns: [out]
""")
MESH = casefile.loads("""
case_format: 1
dims: {B: 3, S: 4, D: 6}
inputs:
  x: {shape: [B, S, D], dtype: float32, values: {seed: 0}, shard: 1, second_shard: 1}
  w: {shape: [D, D], dtype: float32, values: {seed: 1}, second_shard: 0, parameter: true}
mode: training
ops:
  - {name: rows, op: matmul, args: [x, w]}
  - {name: probs, op: softmax, args: [rows], dim: -1}
  - {name: moved, op: redistribute, args: [probs], shard: 0, second_shard: 2}
  - {name: out, op: exp, args: [moved]}
returns: [out]
""")
MOVED = casefile.loads("""
case_format: 1
dims: {S: 4, D: 6}
inputs:
  x: {shape: [S, D], dtype: float32, values: {seed: 0}, second_shard: 0}
ops:
  - {name: rows, op: tanh, args: [x]}
  - {name: moved, op: redistribute, args: [rows], second_shard: 1}
  - {name: out, op: exp, args: [moved]}
returns: [out]
""")
SUMMED = casefile.loads("""
case_format: 1
dims: {S: 4}
inputs:
  x: {shape: [S, S], dtype: float32, values: {seed: 0}, shard: 0, second_shard: 1}
  w: {shape: [S, S], dtype: float32, values: {seed: 1}, second_shard: 0}
ops:
  - {name: out, op: matmul, args: [x, w]}
returns: [out]
""")
WINDOWS = casefile.loads("""
case_format: 1
dims: {S: 4}
inputs:
  x: {shape: [S], dtype: float32, values: {seed: 0}, shard: 0}
ops:
  - {name: out, op: as_strided, args: [x], sizes: [2, 2], strides: [1, 1]}
returns: [out]
""")


CHAIN = casefile.loads("""
case_format: 1
dims: {S: 4}
inputs:
  x: {shape: [S, S], dtype: float32, values: {seed: 0}, shard: 0}
  other: {shape: [S, S], dtype: float32, values: {seed: 1}}
ops:
  - {name: scores, op: matmul, args: [x, other]}
  - {name: out, op: softmax, args: [scores], dim: -1}
returns: [out]
""")


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with open_evaluator(WorkerConfig(timeout=120), repeat=1) as made:
        yield made


def judge(evaluator: Asker, case: Case) -> SubjectResult:
    return evaluator.ask(Question(case, ("sharded",))).only


@pytest.mark.parametrize(
    ("case", "subject"),
    [
        (ATTENTION, "sharded"),
        (MESH, "sharded"),
        (MESH, "aot_eager_sharded"),
        (EMBEDDING, "sharded"),
        (EMBEDDING, "aot_eager_sharded"),
        (CHAIN, "aot_eager_sharded"),
    ],
)
def test_a_right_program_passes(evaluator: Evaluator, case: Case, subject: str) -> None:
    assert evaluator.ask(Question(case, (subject,))).only.verdict in (Verdict.OK, Verdict.ROUNDING)


@pytest.mark.torch("==2.13.*", "can't trace how DTensor redistributes a flattened axis")
def test_a_program_that_dynamo_leaves_to_eager_is_not_judged(evaluator: Evaluator) -> None:
    result = evaluator.ask(Question(ATTENTION, ("aot_eager_sharded",))).only
    assert result.verdict is Verdict.SKIPPED
    assert isinstance(result.failure, NotTaken) and result.failure.why is Refusal.NOT_COMPILED


def test_an_operation_without_a_rule_is_not_supported(evaluator: Evaluator) -> None:
    assert judge(evaluator, WINDOWS).verdict is Verdict.SKIPPED


def attribute_smallest(evaluator: Asker, case: Case) -> tuple[str, str, str]:
    found = judge(evaluator, case)
    assert found.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    smallest = shrink(case, lambda one: is_same_failure(judge(evaluator, one), found, exact=False))[-1]
    assert len(smallest.ops) <= 3
    assert sum(item.shard is not None for item in smallest.inputs) <= 2
    cause = attribute(Entry(smallest, expect=Expectation("known", subject="sharded")), evaluator)
    return cause.who, cause.stage, cause.part


@pytest.mark.parametrize(
    ("plants", "parts"),
    [
        ("shard_kept,offset_forgotten", [(ATTENTION, "aten._softmax"), (EMBEDDING, "aten.embedding")]),
        ("moved_shard_reversed,second_partial_kept", [(MOVED, "DTensor.redistribute"), (SUMMED, "aten.mm")]),
    ],
)
def test_planted_faults_are_found_named_and_shrunk(plants: str, parts: list[tuple[Case, str]]) -> None:
    with planted(plants), open_evaluator(WorkerConfig(timeout=120), repeat=1) as made:
        evaluator = AnswerCache(made)
        for case, part in parts:
            assert attribute_smallest(evaluator, case) == ("sharded", "sharding", part)


def list_ranks(evaluator: Evaluator) -> list[int]:
    """The processes of the ranks of its worker."""
    return [rank for supervisor in _children(evaluator.hello.pid) for rank in _children(supervisor)]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_rank_that_was_killed_between_two_cases_is_replaced(evaluator: Evaluator) -> None:
    judge(evaluator, EMBEDDING)
    os.kill(list_ranks(evaluator)[1], signal.SIGKILL)
    assert judge(evaluator, EMBEDDING).verdict is Verdict.OK


def test_ranks_that_end_alike_are_replaced(evaluator: Evaluator) -> None:
    judge(evaluator, EMBEDDING)
    for rank in list_ranks(evaluator):
        os.kill(rank, signal.SIGABRT)
    lost = judge(evaluator, EMBEDDING)
    assert lost.verdict is Verdict.WORKER_DIED
    assert isinstance(lost.failure, ProcessLost) and "connection.py" in lost.failure.place
    assert judge(evaluator, EMBEDDING).verdict is Verdict.OK


def test_an_exception_without_text_is_told_by_the_line_of_torch_that_raises(evaluator: Evaluator) -> None:
    twice = load(Path("corpus/known/rows-of-a-sharded-table-read-twice.case.yaml")).case
    failure = judge(evaluator, twice).failure
    assert isinstance(failure, Raised) and not failure.text
    assert failure.place == "_MaskPartial._reduce_value (placement_types.py)"


def test_a_write_on_whole_tensors_goes_to_every_argument_that_the_operation_writes() -> None:
    dist.init_process_group(
        "gloo",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, mean, var = (distribute_tensor(torch.arange(1.0, 1 + n), mesh, [Shard(0)]) for n in (8, 4, 4))
        with WholeOperations("0"):
            torch.ops.aten._native_batch_norm_legit(x.view(2, 4), None, None, mean, var, True, 0.5, 1e-5)
        torch.testing.assert_close(mean.full_tensor(), torch.tensor([2.0, 3.0, 4.0, 5.0]))
        torch.testing.assert_close(var.full_tensor(), torch.tensor([4.5, 5.0, 5.5, 6.0]))
    finally:
        dist.destroy_process_group()


def test_a_rank_that_hangs_costs_its_case_and_leaves_nothing(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(evaluator, EMBEDDING)
    ranks = list_ranks(evaluator)
    os.kill(ranks[1], signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(evaluator.process, "config", replace(evaluator.config, timeout=5))
        assert judge(evaluator, EMBEDDING).verdict is Verdict.TIMEOUT
    assert all(map(is_gone, ranks))
    assert judge(evaluator, EMBEDDING).verdict is Verdict.OK
