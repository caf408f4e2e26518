"""What a case reaches of the compiler, told by the compiler."""

import importlib

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.patterns import registered_patterns
from fuzz.check.run.graph_passes import GraphNotCaptured, Recording, backend
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import torch_internals
from fuzz.check.torch_api.coverage import Coverage, missing_hooks
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import NotTaken, Raised, Refusal
from tests.check.client import Asker
from tests.check.in_process import source

#: Inductor's passes import what is deprecated. After a graph break Dynamo reads gradients of tensors that have none.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")

SIZES = "2, 3, 6, 4"
SCORES = "scores = q @ k.transpose(-2, -1) / 2.0"
ATTENTION = source(SCORES, "return scores.softmax(dim=-1) @ v", dims=SIZES)
MORE = source(SCORES, "return scores.softmax(dim=-1) @ v + 1", dims=SIZES)
DROPOUT = source(SCORES, "return F.dropout(scores.softmax(dim=-1), 0.1, self.training) @ v", dims=SIZES)
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
FUSED = "_sfdp_pattern_1_inference"


class Attention(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) / 2.0).softmax(dim=-1) @ v


class Fused(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class Broken(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return q + k + v


class Writing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.count = torch.nn.Buffer(torch.zeros(()))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        self.count.add_(1)
        weights = (q * self.weight @ k.mT).softmax(dim=-1)
        dropped = functional.dropout(weights, 0.0, False)
        return dropped[..., :6] @ v, weights, k, weights, self.count


class Reading(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q + k if v.sum().item() > 0 else q - k


class Indexing(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q[(k[0, 0, 0, 0] > 0).long()] @ k.mT).softmax(dim=-1) @ v


class Entering(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return q @ k.mT @ v


def reached(module: torch.nn.Module) -> Coverage:
    torch._dynamo.reset()
    coverage = Coverage()
    with coverage, torch.no_grad():
        find("passes").compile(module, False)(*(torch.randn(2, 3, 6, 4) for _ in "qkv"))
    return coverage


@pytest.mark.parametrize("kind", [Attention, Fused, Writing, Indexing])
@pytest.mark.parametrize("training", [False, True])
def test_a_recorded_graph_gives_and_reaches_what_dynamos_does(kind: type[torch.nn.Module], training: bool) -> None:
    seen = []
    for compiler in (find("passes").compile, lambda module, _: torch.compile(module, backend=backend(), dynamic=False)):
        torch._dynamo.reset()
        module, coverage = kind(), Coverage()
        inputs = [torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(7)) for _ in range(3)]
        with coverage, torch.set_grad_enabled(training):
            values = compiler(module, False)(*(one.requires_grad_(training) for one in inputs))
        values = values if isinstance(values, tuple) else (values,)
        same = [[one is other for other in (*inputs, *module.buffers())] for one in values]
        seen.append((coverage.applied_rewrites, coverage.items, same, [one.detach().tolist() for one in values]))
    Recording(kind(), tuple(inputs))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [Reading, Entering])
def test_what_calls_do_not_tell_is_left_to_dynamo(kind: type[torch.nn.Module]) -> None:
    inputs = tuple(torch.randn(2, 3, 4, 4) for _ in range(3))
    with pytest.raises(GraphNotCaptured):
        Recording(kind(), inputs)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(find("passes").compile(kind(), False)(*inputs), kind()(*inputs))


@pytest.mark.compiles
def test_errors_of_guards_that_passes_make_are_kept(worker: Asker) -> None:
    whole = ATTENTION.replace("2.0", "2")
    errors = {worker.one(whole, subject, training=True).failure for subject in ("passes", "inductor")}
    assert len(errors) == 1
    assert isinstance(errors.pop(), Raised)


def test_a_case_tells_the_rewrite_and_the_attention_that_takes_its_place(worker: Asker) -> None:
    result = worker.one(ATTENTION, "passes")
    assert FUSED in result.applied_rewrites
    assert CoverageItem(CoverageKind.OP, f"aten.{FLASH}") in result.coverage
    assert CoverageItem(CoverageKind.OP, "aten.bmm") not in result.coverage


@pytest.mark.compiles
def test_a_compiled_case_tells_lowerings_and_fallbacks_too(worker: Asker) -> None:
    told = set(worker.one(MORE, "inductor").coverage)
    assert {
        CoverageItem(CoverageKind.FALLBACK, f"aten.{FLASH}"),
        CoverageItem(CoverageKind.LOWERING, "aten.add"),
    } <= told


def test_dropout_is_fused_only_where_inductor_draws_its_own_numbers(worker: Asker) -> None:
    assert not any(
        "sfdp" in name for name in worker.one(DROPOUT, "passes", training=True, random=True).applied_rewrites
    )
    result = worker.one(DROPOUT, "passes_random", training=True, random=True)
    assert "_sfdp_pattern_3_training" in result.applied_rewrites
    assert not result.verdict.is_finding
    assert worker.one(ATTENTION, "passes_random").failure == NotTaken(Refusal.NOT_RANDOM)


def test_a_view_of_an_input_stays_one_whatever_the_stride_of_an_axis_of_size_1(worker: Asker) -> None:
    part = "part = q.reshape(B, S, H * D).chunk(2, dim=-1)[0].reshape(B, S, 2, H * D // 4)"
    text = source(part, "return part.transpose(1, 2), part.exp()", dims="2, 4, 1, 16")
    assert worker.one(text, "passes", training=True).verdict is Verdict.OK


def test_a_graph_without_attention_reaches_none() -> None:
    coverage = reached(Broken())
    assert not any("sfdp" in name for name in coverage.applied_rewrites)
    assert CoverageItem(CoverageKind.OP, "aten.add") in coverage.items
    assert not any("attention" in item.name for item in coverage.items)


@pytest.mark.parametrize(
    ("module", "name", "part", "still"),
    [
        ("torch._inductor.graph", "GraphLowering.call_function", "lowerings", FUSED),
        (
            "torch._inductor.pattern_matcher",
            "ReplacementPatternEntry.apply",
            "rewrites",
            CoverageItem(CoverageKind.OP, f"aten.{FLASH}"),
        ),
    ],
)
def test_what_a_torch_lacks_is_named_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, part: str, still: str | CoverageItem
) -> None:
    original = torch_internals.find
    missing = (module, name)
    found = lambda *path: None if path == missing else original(*path)  # noqa: E731  (a stand-in of one line)
    monkeypatch.setattr("fuzz.check.torch_api.coverage.find", found)
    assert missing_hooks() == {part: f"{module}.{name}"}
    coverage = reached(Attention())
    assert still in (*coverage.applied_rewrites, *coverage.items)


def test_nothing_is_left_of_the_hooks() -> None:
    pipeline = importlib.import_module("torch._inductor.compile_fx")
    before = pipeline._recursive_post_grad_passes
    with pytest.raises(ZeroDivisionError), Coverage():
        raise ZeroDivisionError
    assert pipeline._recursive_post_grad_passes is before


def test_the_registry_says_which_patterns_stand_for_others() -> None:
    patterns = {pattern.name: pattern for pattern in registered_patterns("cpu")}
    assert not patterns[FUSED].same_as and not patterns[FUSED].after
    assert patterns["_sfdp_pattern_4_inference"].same_as == "_sfdp_pattern_2_inference"
    assert patterns["_sfdp_pattern_3_inference"].after == FUSED
