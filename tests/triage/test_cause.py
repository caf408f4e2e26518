"""Attribution: bugs of torch that are known, and mistakes planted where nobody tells triage of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.attribution import RELU, planted
from corpus import casefile, entry
from corpus.entry import Entry, Expectation
from fuzz.evaluator import Evaluator, WorkerConfig, open_evaluator
from generators.errors import UserError
from tests.triage.conftest import SOFTMAX_OVER_QUERIES
from triage.attribution.bisector import parsed
from triage.attribution.cause import RootCause, attribute, attributed
from triage.attribution.rewrite import CONSTANTS_IGNORED, OTHER_RESULT

SEEDS = Path(entry.__file__).parent / "seeds"
PLANTS = {
    "scale_dropped": "sfdp-01-inference", "queries_and_keys_swapped": "sfdp-02-inference", "scale_squared": "sfdp-05-inference",
    "causal_added": "sfdp-11-inference", "mask_dropped": "sfdp-14-inference", "queries_reversed": "sfdp-19-inference",
}  # fmt: skip
SCALED_BY_A_TENSOR = """
case_format: 1
dims: {T: 2}
mode: inference
inputs:
  mask: {shape: [T], dtype: bool, values: {kind: random, seed: 0}}
  x: {shape: [1, T], dtype: float32, values: {kind: normal, seed: 1}}
  "y": {shape: [1, 1, T, T], dtype: float32, values: {kind: normal, seed: 2}}
  z: {shape: [], dtype: float32, values: {kind: normal, seed: 3}}
ops:
- {name: turned, op: transpose, args: ["y"]}
- {name: product, op: matmul, args: [x, turned]}
- {name: scaled, op: div, args: [product, z]}
- {name: total, op: add, args: [scaled, mask]}
- {name: probs, op: softmax, args: [total]}
- {name: out, op: matmul, args: [probs, "y"]}
returns: [out]
"""
MASK_OF_RANK_1 = """
case_format: 1
dims: {T: 2}
mode: inference
inputs:
  x: {shape: [1, 1, 1, T], dtype: float32, values: {kind: normal, seed: 0}}
  "y": {shape: [1, T, 1, T], dtype: float32, values: {kind: normal, seed: 1}}
  mask: {shape: [T], dtype: bool, values: {kind: random, seed: 2}}
ops:
- {name: turned, op: permute, args: [x], dims: [0, 2, 1, 3]}
- {name: turned2, op: transpose, args: ["y"], dim0: 1, dim1: 2}
- {name: turned3, op: permute, args: ["y"], dims: [0, 2, 1, 3]}
- {name: turned4, op: transpose, args: [turned2]}
- {name: product, op: matmul, args: [turned, turned4]}
- {name: total, op: add, args: [product, mask]}
- {name: probs, op: softmax, args: [total]}
- {name: out, op: matmul, args: [probs, turned3]}
returns: [out]
"""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    with open_evaluator(
        WorkerConfig(timeout=120, memory_mib=8192), repeat=1, with_error_map=True, remember=True
    ) as made:
        yield made


@pytest.fixture(scope="module")
def planted_trials() -> Iterator[Evaluator]:
    with (
        planted(",".join(PLANTS)),
        open_evaluator(
            WorkerConfig(timeout=120, memory_mib=8192), repeat=1, with_error_map=True, remember=True
        ) as made,
    ):
        yield made


def of(text: str, subject: str = "passes") -> Entry:
    return Entry(casefile.loads(text), expect=Expectation("known", subject=subject))


def named(cause: RootCause) -> tuple[str, str, str]:
    return cause.who, cause.stage, cause.part


def test_a_pattern_that_ignores_the_programs_constants_is_named_with_the_constant(trials: Evaluator) -> None:
    cause = attributed(of(SOFTMAX_OVER_QUERIES), trials).cause
    assert named(cause) == ("inductor", "joint_graph_passes", "_sfdp_pattern_1")
    assert cause.mechanism == CONSTANTS_IGNORED
    assert cause.evidence[-1].endswith("others than its own: softmax over [-2] where the pattern has [-1].")


def test_a_scale_that_is_a_tensor_is_told_from_constants(trials: Evaluator) -> None:
    assert attributed(of(SCALED_BY_A_TENSOR), trials).cause.mechanism == "a 0-d tensor as scale"


def test_a_mask_of_rank_1_is_told_from_constants(trials: Evaluator) -> None:
    cause = attributed(of(MASK_OF_RANK_1), trials).cause
    assert cause.mechanism == "mask of rank 1"
    assert cause.evidence[-1] == "It goes away where the replacement expands the mask to the scores' shape."


def test_the_four_training_patterns_in_two_dtypes_have_one_mechanism(trials: Evaluator) -> None:
    for number in ("07", "08"):
        found = attributed(entry.load(SEEDS / "patterns" / f"sfdp-{number}-training.case.yaml"), trials).cause
        assert named(found) == ("inductor", "joint_graph_passes", f"_sfdp_pattern_{int(number)}")
        assert found.mechanism == "an operation is given tensors of two dtypes"


def test_a_backend_that_is_wrong_on_overlapping_rows_is_named_with_that(trials: Evaluator) -> None:
    found = attributed(entry.load(SEEDS / "fused-attention-on-overlapping-strides.case.yaml"), trials).cause
    assert found.who == "sdpa_flash"
    assert found.mechanism == "operands whose rows overlap in memory"


def test_what_shows_no_bug_is_refused(trials: Evaluator) -> None:
    with pytest.raises(UserError, match="shows no bug under torch"):
        attributed(entry.load(SEEDS / "patterns" / "sfdp-01-inference.case.yaml"), trials)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_planted_in_a_replacement_is_found_in_that_pattern(planted_trials: Evaluator, plant: str) -> None:
    found = attributed(entry.load(SEEDS / "patterns" / f"{PLANTS[plant]}.case.yaml"), planted_trials).cause
    assert named(found) == ("inductor", "joint_graph_passes", f"_sfdp_pattern_{int(PLANTS[plant].split('-')[1])}")
    assert found.mechanism == OTHER_RESULT


@pytest.mark.parametrize("plant", ["relu_accuracy", "relu_compile_error"])
def test_a_lowering_that_is_wrong_is_named(plant: str) -> None:
    with planted(plant):
        found = attribute(of(RELU, "inductor"), WorkerConfig(timeout=120, memory_mib=8192)).cause
    assert named(found) == ("inductor", "lowering", "relu")


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "Bisection complete: BisectionResult(backend='inductor', subsystem='joint_graph_passes', debug_info='pass_pattern_0')",
            "inductor, joint_graph_passes: pass_pattern_0",
        ),
        (
            "Bisection complete: BisectionResult(backend='inductor', subsystem='lowerings', bisect_number=3, debug_info='relu_1')",
            "inductor, lowerings: relu",
        ),
        (
            "Bisection complete: BisectionResult(backend='aot_eager', subsystem=None, bisect_number=None, debug_info=None)",
            "aot_eager",
        ),
        ("Bisection complete: None", "it found nothing"),
        ("Bisection complete: no issue found", "it found nothing"),
        ("Traceback", "it did not end as it should"),
    ],
)
def test_the_bisectors_last_line_is_read(output: str, line: str) -> None:
    assert parsed(f"some\n{output}\n").line == line
