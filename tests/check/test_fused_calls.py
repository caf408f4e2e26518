"""A fused call is at fault where eager is wrong too, and backends are judged on the calls that rewrites make."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.planted_torch.torch_defects import OPERATIONS
from corpus import entry
from fuzz.ask.evaluator import build_check
from fuzz.check.check import check
from fuzz.check.run.subject_builder import find
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, NotTaken, Raised, Refusal
from fuzz.protocol.rewrites import SDPA
from tests.check.in_process import run_subject
from tests.check.sources import source

pytestmark = pytest.mark.compiles

ROOT = Path(__file__).parents[2]
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


@contextmanager
def planted(name: str) -> Iterator[None]:
    """A defect of `benchmarks/planted_torch` in an operation of this process."""
    operation, key, kernel = OPERATIONS[name]
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    try:
        library.impl(operation, kernel, key)
        yield
    finally:
        library._destroy()


def judge(seed: str, subject: str) -> SubjectResult:
    case = entry.load(ROOT / "corpus" / "seeds" / "patterns" / f"{seed}.case.yaml").case
    request = build_check(case, (subject,))
    return check(request, {subject: find(subject)}, "cpu", lambda stage: None, lambda: 0.0).results[0]


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize(
    ("plant", "seed", "operation"),
    [
        ("last_key_ignored", "sfdp-05-training", FLASH),
        ("query_gradient_doubled", "sfdp-05-training", f"{FLASH}_backward"),
        ("scale_of_padded_size", "sfdp-05-training", SDPA),
        ("scale_of_padded_size", "sfdp-09-half-inference", SDPA),
    ],
)
def test_a_fault_of_the_fused_call_is_none_of_the_rewrite(plant: str, seed: str, operation: str) -> None:
    with planted(plant):
        compiled, alone, math = (judge(seed, name) for name in ("passes", "sdpa_flash", "sdpa_math"))
    assert compiled.verdict.is_finding and compiled.right_rewrites
    assert [one.operation for one in compiled.wrong_rewrites] == [operation]
    assert isinstance(compiled.wrong_rewrites[0].faulty, FaultyOperation)
    # The case has no contract: its rewrite says what its attention is.
    assert alone.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    assert math.verdict in (Verdict.OK, Verdict.ROUNDING)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_exception_of_the_backward_pass_is_of_the_fused_call_if_eager_raises_it() -> None:
    text = source("return (q @ k.transpose(-2, -1)).div(4.0).softmax(dim=-1) @ v", dims="1, 2, 6, 7")
    with planted("odd_sizes_refused"):
        result = run_subject(find("passes"), training=True, text=text)
    assert [one.operation for one in result.wrong_rewrites] == [SDPA]
    assert isinstance(result.wrong_rewrites[0].faulty, Raised)
    two_dtypes = judge("sfdp-08-training", "passes")
    assert two_dtypes.verdict is Verdict.RUNTIME_ERROR and not two_dtypes.wrong_rewrites


def test_a_backend_takes_no_case_without_attention() -> None:
    assert judge("sfdp-05-training", "sdpa_flash").verdict in (Verdict.OK, Verdict.ROUNDING)
    case = entry.load(ROOT / "corpus" / "known" / "amax-of-a-sum-in-training.case.yaml").case
    request = build_check(case, ("sdpa_flash",))
    result = check(request, {"sdpa_flash": find("sdpa_flash")}, "cpu", lambda stage: None, lambda: 0.0).results[0]
    assert isinstance(result.failure, NotTaken) and result.failure.why is Refusal.NO_CONTRACT
