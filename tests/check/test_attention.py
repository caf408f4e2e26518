"""Attention functions in the place of a case's own attention: their faults, guarded memory, packed and paged calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import plain as plain_kernels
from benchmarks.defects import planted
from fuzz.check.check import check
from fuzz.check.judge.attention.judge_calls import call_again
from fuzz.check.run.attention.function import Attention, fill_matters
from fuzz.check.run.attention.guard import Guard
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, SubjectResult, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Failure, NotTaken, OutOfBounds, Refusal, Value, Write
from tests.check import planted_attention
from tests.check.client import Asker
from tests.check.in_process import is_failure, plain, run_subject, source
from tests.kernels.reference import math_attention

HOME = planted_attention.__name__
ALLOCATED = "torch.empty_like at planted_attention.py:43"
ASSERTION = "planted_attention.py:108: assert q.shape[1] != k.shape[1]"
ATTEND = source("return attend(q, k, v, scale=0.25)")


def ask(
    worker: Asker, name: str, text: str = "", attention_stub: str | None = ATTEND, *, training: bool = False
) -> SubjectResult:
    named = f"{HOME}:{name}"
    return worker.one(
        text or plain(),
        named if named in planted_attention.SUBJECTS else name,
        training=training,
        attention_stub=attention_stub,
    )


def test_they_are_said_to_be_what_they_are(worker: Asker) -> None:
    hello = worker.hello
    assert set(planted_attention.SUBJECTS) <= set(hello.attention)
    assert {"triton", "sdpa_math", "sdpa_flash"} <= set(hello.attention)
    assert "passes" not in hello.attention and "sdpa_cudnn" not in hello.subjects


@pytest.mark.parametrize("training", [False, True])
def test_a_right_one_is_right(worker: Asker, training: bool) -> None:
    result = ask(worker, "right", training=training)
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING), result.failure
    assert result.dynamo_same is True


@pytest.mark.parametrize(
    ("name", "verdict", "kind", "fields"),
    [
        ("without_last_key", Verdict.WRONG_RESULT, "wrong_value", {"value": Value.of_result("out")}),
        (
            "too_far",
            Verdict.OUT_OF_BOUNDS,
            "out_of_bounds",
            {"writes": (Write(ALLOCATED, "before", 2), Write(ALLOCATED, "after", 3))},
        ),
        (
            "unwritten",
            Verdict.NONFINITE,
            "not_finite",
            {"value": Value.of_result("out"), "count": 128, "first": (0, 0, 16, 0)},
        ),
        ("scaling_in_place", Verdict.OUT_OF_BOUNDS, "out_of_bounds", {"writes": (Write("q", "itself", 2176),)}),
        ("only_float64", Verdict.SKIPPED, "not_taken", {"why": Refusal.UNSUPPORTED}),
        ("crashing", Verdict.RUNTIME_ERROR, "raised", {"error": "ValueError", "text": "no such tile"}),
        ("asserting", Verdict.RUNTIME_ERROR, "raised", {"error": "AssertionError", "text": "", "place": ASSERTION}),
        ("refusing", Verdict.SKIPPED, "not_taken", {"why": Refusal.UNSUPPORTED, "detail": f"it says {ASSERTION}"}),
        ("turned", Verdict.RUNTIME_ERROR, "raised", {"error": "TypeError"}),
        (
            "small_heads",
            Verdict.SKIPPED,
            "not_taken",
            {"why": Refusal.UNSUPPORTED, "detail": "it does not take head_dim 16, value_dim 16"},
        ),
    ],
)
def test_a_fault_ends_as_its_verdict(
    worker: Asker, name: str, verdict: Verdict, kind: str, fields: dict[str, Any]
) -> None:
    result = ask(worker, name)
    assert result.verdict == verdict, result.failure
    assert is_failure(result.failure, kind, **fields), result.failure


def test_a_backward_pass_is_watched_too(worker: Asker) -> None:
    assert ask(worker, "beside_dv").verdict in (Verdict.OK, Verdict.ROUNDING)
    result = ask(worker, "beside_dv", training=True)
    assert result.verdict == Verdict.OUT_OF_BOUNDS
    assert result.failure == OutOfBounds((Write("torch.zeros_like at planted_attention.py:83", "after", 7),))


def test_a_wrong_gradient_is_located(worker: Asker) -> None:
    result = ask(worker, "first_rows", training=True)
    assert result.verdict == Verdict.WRONG_GRADIENT
    where = result.where
    assert where is not None and where.value == Value.of_result("dq") and where.shape == (2, 4, 17, 16)
    assert where.ranges[:3] == (((0, 1),), ((1, 3),), ((0, 4),))


def test_what_it_has_no_keyword_for_is_not_asked_of_it(worker: Asker) -> None:
    causal = source("return F.scaled_dot_product_attention(q, k, v, scale=0.25, is_causal=True)")
    attention_stub = source('return attend(q, k, v, scale=0.25, causal="top_left")')
    assert ask(worker, "right", causal, attention_stub).verdict in (Verdict.OK, Verdict.ROUNDING)
    result = ask(worker, "without_last_key", causal, attention_stub)
    assert result.failure == NotTaken(Refusal.UNSUPPORTED, "it does not take the parameter causal")
    result = ask(worker, "right", causal, attention_stub=None)
    assert result.failure == NotTaken(Refusal.NO_CONTRACT)


@pytest.mark.parametrize(
    ("fill", "rows", "verdict"),
    [("-1e4", 0, Verdict.ROUNDING), ("-1e4", -1, Verdict.SKIPPED), ("-5.0", 0, Verdict.SKIPPED)],
)
def test_a_finite_fill_is_left_alone_where_it_can_be_told(
    worker: Asker, fill: str, rows: int, verdict: Verdict
) -> None:
    mask = f"torch.ones(S, S).tril({rows}).bool()"
    filled = source(
        f"scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(~rest[0], {fill})",
        "return scores.softmax(-1) @ v",
        extra=mask,
    )
    attention_stub = source(f"return attend(q, k, v, scale=0.25, mask=rest[0], fill={fill})", extra=mask)
    result = ask(worker, "right", filled, attention_stub)
    assert result.verdict in ((verdict, Verdict.OK) if verdict is Verdict.ROUNDING else (verdict,)), result.failure


@pytest.mark.parametrize("layout", ["B, S, H, D", "B, H, D, S"])
@pytest.mark.parametrize("name", ["right", "sdpa_math", "sdpa_flash"])
def test_any_strides_and_expanded_keys(worker: Asker, layout: str, name: str) -> None:
    axes = "1, 2" if layout.startswith("B, S") else "2, 3"
    lines = [f"q, k, v = (x.transpose({axes}) for x in (q, k, v))", "k = k[:, :1].expand(B, H, S, D)"]
    text = source(*lines, "return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v", layout=layout)
    attention_stub = source(*lines, "return attend(q, k, v, scale=0.25)", layout=layout)
    result = ask(worker, name, text, attention_stub, training=True)
    backends = (Verdict.SKIPPED,) if name == "sdpa_flash" and axes == "2, 3" else ()
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING, *backends), result.failure


def test_text_around_it_that_needs_other_strides_accuses_nobody(worker: Asker) -> None:
    attention_stub = source("return attend(q, k, v, scale=0.25).transpose(1, 2).view(B, H, S, D)")
    result = ask(worker, "right", plain(), attention_stub)
    assert result.verdict == Verdict.SKIPPED and is_failure(result.failure, "not_taken", why=Refusal.TEXT_FAILS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("boastful", "unknown capability 'max_heads': there are dtypes, head_dims, "),
        ("vague", "dtypes: expected a list, got 'bfloat16'"),
    ],
)
def test_capabilities_that_mean_nothing_are_refused(name: str, reason: str) -> None:
    with pytest.raises(SubjectError) as error:
        find(f"{HOME}:{name}")
    assert str(error.value).startswith(f"subject '{HOME}:{name}': {reason}")


def test_the_order_of_the_first_parameters_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swapped.py").write_text("def attention(q, v, k, *, scale):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="the order must be q, k, v"):
        find("swapped:attention")


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 9)[:, 2:6],
        torch.randn(3, 8)[:, ::2],
        torch.randn(12).as_strided((4, 3), (2, 1)),
        torch.randn(0, 4),
        torch.tensor(1.0),
        torch.ones(3, 4, dtype=torch.bool).tril(),
        torch.arange(5),
        torch.randn(3, 4).bfloat16(),
    ],
    ids=lambda value: f"{list(value.shape)} {list(value.stride())} {value.dtype}",
)
def test_a_guarded_tensor_is_equal_and_laid_out_alike(value: Tensor) -> None:
    guard = Guard()
    given = guard.protect_argument("x", value)
    assert torch.equal(given, value) and given.dtype == value.dtype and given.stride() == value.stride()
    assert given.data_ptr() != value.data_ptr() or not value.numel()
    assert guard.damage() == ()


def test_gradients_flow_through() -> None:
    guard = Guard()
    value = torch.randn(2, 3, requires_grad=True)
    with guard:
        out = guard.protect_result(guard.protect_argument("x", value) * 2)
    (grad,) = torch.autograd.grad(out, value, torch.ones(2, 3))
    assert torch.equal(grad, torch.full((2, 3), 2.0)) and guard.damage() == ()


def test_what_lies_between_rows_is_guarded_and_poison() -> None:
    guard = Guard()
    rows = guard.protect_argument("x", torch.randn(3, 9)[:, 2:6])
    wide = rows.as_strided((3, 9), (9, 1), rows.storage_offset())
    assert wide[:2, 4:].isnan().all()
    wide[1, 5] = 0.0
    assert guard.damage() == (Write("x", "between", 1),)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU beside the CPU")
def test_writes_are_found_where_buffers_lie_on_two_devices() -> None:
    guard = Guard()
    given = [guard.protect_argument(device, torch.ones(2, device=device)) for device in ("cpu", "cuda")]
    assert guard.damage() == ()
    given[1].add_(1)
    assert guard.damage() == (Write("cuda", "itself", 2),)


def test_results_of_poison_are_told_from_it() -> None:
    guard = Guard()
    row = guard.protect_argument("x", torch.randn(4))
    beyond = row.as_strided((4,), (1,), row.storage_offset() + 4)
    beyond.copy_(beyond * 1.0)
    assert guard.damage() == (Write("x", "after", 4),)


def test_torch_is_left_as_it_was() -> None:
    before = (torch.empty, torch.zeros_like, torch.Tensor.new_zeros, "new_zeros" in vars(torch.Tensor))
    with Guard():
        assert torch.empty is not before[0]
        assert torch.empty(3).isnan().all() and torch.zeros(2, requires_grad=True).requires_grad
    assert (torch.empty, torch.zeros_like, torch.Tensor.new_zeros, "new_zeros" in vars(torch.Tensor)) == before


def test_fills_that_can_be_told_from_minus_infinity() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    assert not fill_matters(float("-inf"), mask, None, 2)
    assert not fill_matters(-1e9, mask[:1], None, 2)
    assert fill_matters(-1e9, mask, None, 2)
    assert fill_matters(-50.0, mask[:1], None, 2)
    assert fill_matters(-1e9, mask[:1], "top_left", 2)
    assert not fill_matters(-5.0, None, None, 2)


def run_alone(attention: Attention, attention_stub: str = "") -> tuple[Verdict, Failure | None]:
    request = Check(1, plain(), ("s",), attention_stub=attention_stub or source("return attend(q, k, v, scale=0.25)"))
    result = check(request, {"s": Subject("s", attention=attention)}, "cpu")
    return result.results[0].verdict, result.results[0].failure


def test_a_function_that_cannot_be_imported_is_skipped_with_the_reason() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'nowhere'")

    refused = NotTaken(Refusal.UNSUPPORTED, "can't be imported: No module named 'nowhere'")
    assert run_alone(Attention(missing)) == (Verdict.SKIPPED, refused)


RIGHT = (Verdict.OK, Verdict.ROUNDING)
DIMS = "2, 4, 17, 16"


def draw_call(batch: int, queries: int, keys: int) -> dict[str, Any]:
    lengths = {"q": queries, "k": keys, "v": keys}
    return {name: torch.randn(batch, 2, length, 8) for name, length in lengths.items()}


@pytest.mark.parametrize("training", [False, True])
def test_right_functions_are_right(training: bool) -> None:
    assert run_subject(plain_kernels.packed, training=training, dims=DIMS).verdict in RIGHT
    assert run_subject(plain_kernels.paged, training=training, dims=DIMS).verdict in (
        (Verdict.SKIPPED,) if training else RIGHT
    )


@pytest.mark.parametrize(
    ("name", "kind", "layout"),
    [("sequence_end_late", "wrong_value", "packed"), ("last_block_in_full", "not_finite", "paged")],
)
def test_planted_mistakes_are_found_in_a_sequence(name: str, kind: str, layout: str) -> None:
    result = run_subject(planted(name), dims=DIMS)
    assert result.verdict.is_finding and is_failure(result.failure, kind, value=Value.of_result("out"))
    assert result.failure is not None and result.failure.sequences is not None
    assert result.failure.sequences.layout == layout and result.failure.sequences.number is not None


def test_a_wrong_gradient_of_one_sequence_is_found() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
        longest = int(cu_seqlens_k.diff().argmax())
        places = torch.arange(k.shape[0])[:, None, None]
        within = (places >= cu_seqlens_k[longest]) & (places < cu_seqlens_k[longest + 1])
        return plain_kernels.packed(q, torch.where(within, k.detach(), k), v, cu_seqlens_k=cu_seqlens_k, **options)

    wrong.capabilities = {"layout": "packed"}  # type: ignore[attr-defined]
    result = run_subject(wrong, training=True, dims="2, 2, 9, 8")
    assert result.verdict is Verdict.WRONG_GRADIENT and is_failure(
        result.failure, "wrong_value", value=Value.of_result("dk")
    )


def test_an_error_says_how_the_call_was_packed() -> None:
    def crashing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        raise ValueError("no such tile")

    crashing.capabilities = {"layout": "packed"}  # type: ignore[attr-defined]
    failure = run_subject(crashing, dims=DIMS).failure
    assert failure is not None and failure.sequences is not None
    assert failure.sequences.layout == "packed" and failure.sequences.number is None


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("layout", ["packed", "paged"])
def test_sequences_are_cut_from_the_call(layout: str, empty: bool) -> None:
    capabilities = Capabilities.read({"layout": layout, "empty": empty})
    lengths = []
    for size in range(1, 40):
        given = draw_call(1 + size % 3, size, size + 3 if size % 2 else max(1, size - 3))
        call = arrange(capabilities, **given, scale=1.0, cut=True)
        lengths += [(one.q.shape[2], one.k.shape[2]) for one in call.calls]
        keys = [one.k.shape[2] for one in call.calls]
        assert call.arguments["cu_seqlens_q"].tolist()[-1] == call.arguments["q"].shape[0]
        assert call.arguments["max_seqlen_k"] == max(keys)
        if layout == "paged":
            unwritten = call.arguments["k"].isnan().all(-1).all(-1)
            assert int((~unwritten).sum()) == sum(keys)
    assert ((0, 0) in lengths) == empty
    assert any(not queries and keys for queries, keys in lengths) == empty
    assert all(queries <= keys for queries, keys in lengths) == (layout == "paged")


@pytest.mark.parametrize("function", [plain_kernels.packed, plain_kernels.paged])
def test_repeated_calls_are_of_whole_rows(function: Callable[..., Tensor]) -> None:
    given = draw_call(2, 5, 40)
    out = call_again(Attention(lambda: function), **given, scale=0.5, causal="bottom_right")
    torch.testing.assert_close(out, math_attention(**given, scale=0.5, causal="bottom_right"))


def test_a_function_has_the_keywords_of_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def attention(q, k, v, *, scale):\n    pass\nattention.capabilities = {'layout': 'packed'}\n"
    (tmp_path / "without_lengths.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="cu_seqlens_q"):
        find("without_lengths:attention")
