"""Attribution: bugs of torch that are known, and mistakes planted where nobody tells triage of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.attribution import planted
from corpus import casefile, entry
from corpus.causes import MechanismKind
from corpus.entry import Entry, Expectation
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import AnswerCache, Asker
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.attribute import attribute
from fuzz.attribution.root_cause import RootCause
from fuzz.protocol.rewrites import SDPA, OtherConstant
from generators.errors import UserError
from tests.programs import program
from tests.triage.conftest import SOFTMAX_OVER_QUERIES, known
from tests.triage.test_kernel import ATTENTION

pytestmark = pytest.mark.worker

SEEDS = Path(entry.__file__).parent / "seeds"
#: benchmarks.attribution plants more.
PLANTS = {
    "scale_dropped": "sfdp-01-inference",
    "queries_and_keys_swapped": "sfdp-02-inference",
    "mask_dropped": "sfdp-14-inference",
}
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
RELU = program("S: 4", {"x": "S"}, "positive = relu x", "out = exp positive")
OVERLAPPING = program(
    "S: 2, D: 3", {"x": "1, 1, D + S - 1", "k": "1, 1, 5, D"}, "q = unfold x, dim: 2, size: D", "out = sdpa q k k"
)


@pytest.fixture(scope="module")
def evaluator(shared: Evaluator) -> Asker:
    return AnswerCache(Evaluator(shared.process, repeat=1))


@pytest.fixture(scope="module")
def planted_evaluator() -> Iterator[Asker]:
    plants = ",".join((*PLANTS, "relu_accuracy"))
    config = WorkerConfig(timeout=120, memory_mib=8192)
    with planted(plants), open_evaluator(config, repeat=1) as made:
        yield AnswerCache(made)


def attribute_planted(plants: str, seed: str) -> RootCause:
    """The cause of a pattern's seed case under a torch with defects."""
    with planted(plants), open_evaluator(WorkerConfig(timeout=120, memory_mib=8192), repeat=1) as made:
        return attribute(entry.load(SEEDS / "patterns" / f"{seed}.case.yaml"), AnswerCache(made))


def named(cause: RootCause) -> tuple[str, str, str]:
    return cause.who, cause.stage, cause.part


@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
def test_a_pattern_that_ignores_the_programs_constants_is_named_with_the_constant(evaluator: Asker) -> None:
    cause = attribute(known(SOFTMAX_OVER_QUERIES, "passes"), evaluator)
    assert named(cause) == ("inductor", "joint_graph_passes", "_sfdp_pattern_1")
    assert cause.mechanism.kind is MechanismKind.CONSTANTS_IGNORED
    (measured,) = cause.rewrites
    assert measured.constants == (OtherConstant("amax", "-2", "-1"), OtherConstant("sum", "-2", "-1"))


def test_right_values_that_are_read_by_strides_are_no_mistake_of_the_fused_call(evaluator: Asker) -> None:
    cause = attribute(entry.load(SEEDS.parent / "known" / "attention-read-by-strides.case.yaml"), evaluator)
    assert named(cause) == ("inductor", "joint_graph_passes", "_sfdp_pattern_23")
    assert cause.mechanism.kind is MechanismKind.STRIDES


def test_a_training_pattern_in_two_dtypes_is_named_with_that(evaluator: Asker) -> None:
    found = attribute(entry.load(SEEDS / "patterns" / "sfdp-07-training.case.yaml"), evaluator)
    assert named(found) == ("inductor", "joint_graph_passes", "_sfdp_pattern_7")
    assert found.mechanism.kind is MechanismKind.TWO_DTYPES


def test_a_backend_that_is_wrong_on_overlapping_rows_is_named_with_that(evaluator: Asker) -> None:
    found = attribute(entry.load(SEEDS / "fused-attention-on-overlapping-strides.case.yaml"), evaluator)
    assert found.who == "sdpa_flash"
    assert found.mechanism.kind is MechanismKind.OVERLAPPING_ROWS


def test_eager_is_named_with_overlapping_rows_as_its_backend_is(evaluator: Asker) -> None:
    found = attribute(known(OVERLAPPING, "eager"), evaluator)
    assert (found.who, found.mechanism.kind) == ("sdpa_flash", MechanismKind.OVERLAPPING_ROWS)


def test_what_shows_no_bug_is_refused(evaluator: Asker) -> None:
    right = Entry(casefile.loads(ATTENTION), expect=Expectation("pass", subject="sdpa_math"))
    with pytest.raises(UserError, match="shows no bug under torch"):
        attribute(right, evaluator)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_planted_in_a_replacement_is_found_in_that_pattern(planted_evaluator: Asker, plant: str) -> None:
    found = attribute(entry.load(SEEDS / "patterns" / f"{PLANTS[plant]}.case.yaml"), planted_evaluator)
    assert named(found) == ("inductor", "joint_graph_passes", f"_sfdp_pattern_{int(PLANTS[plant].split('-')[1])}")
    assert found.mechanism.kind in (MechanismKind.OTHER_RESULT, MechanismKind.OPERANDS)
    assert found.evidence[-1].experiment == "exact" and found.rewrites


def test_a_wrong_operation_is_blamed_in_place_of_the_rewrite_that_calls_it() -> None:
    """Though a rewrite is wrong as well."""
    found = attribute_planted("last_key_ignored,mask_negated", "sfdp-15-inference")
    assert named(found) == ("sdpa_flash", "operation", FLASH)
    met = [(one.experiment, one.argument) for one in found.evidence if one.argument]
    assert met == [("eager_replacement", "_sfdp_pattern_15_inference"), ("exact", "_sfdp_pattern_15_inference")]
    assert found.rewrites[0].operation == FLASH


@pytest.mark.parametrize(
    ("plant", "seed", "key"),
    [
        ("query_gradient_doubled", "sfdp-05-training", ("sdpa_flash", "operation", f"{FLASH}_backward")),
        ("scale_of_padded_size", "sfdp-05-inference", ("eager", "operation", SDPA)),
        ("scale_squared", "sfdp-05-training", ("inductor", "joint_graph_passes", "_sfdp_pattern_5")),
    ],
)
def test_kernel_and_rewrite_are_told_apart(plant: str, seed: str, key: tuple[str, str, str]) -> None:
    found = attribute_planted(plant, seed)
    assert named(found) == key
    assert bool(found.rewrites[0].faulty) is (key[1] == "operation")


def test_attention_that_raises_in_eager_too_is_blamed_in_place_of_the_rewrite(evaluator: Asker) -> None:
    found = attribute(entry.load(SEEDS.parent / "known" / "mask-of-rank-1.case.yaml"), evaluator)
    assert named(found) == ("eager", "operation", SDPA)
    assert found.mechanism.kind is MechanismKind.RUNNING_RAISES
    two_dtypes = attribute(entry.load(SEEDS / "patterns" / "sfdp-08-training.case.yaml"), evaluator)
    assert named(two_dtypes) == ("inductor", "joint_graph_passes", "_sfdp_pattern_8")


@pytest.mark.compiles
def test_a_lowering_that_is_wrong_is_named(planted_evaluator: Asker) -> None:
    found = attribute(known(RELU), planted_evaluator)
    assert named(found) == ("inductor", "lowering", "relu")
