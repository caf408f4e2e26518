"""Packed and paged calls: what functions are handed, how each sequence is judged, and what planted mistakes become."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import plain
from benchmarks.defects import planted
from fuzz.check.judge.attention.judge_calls import call_again
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Value
from tests.check.failures import is_failure
from tests.check.in_process import run_subject
from tests.kernels.reference import math_attention

RIGHT = (Verdict.OK, Verdict.ROUNDING)
DIMS = "2, 4, 17, 16"


def draw_call(batch: int, queries: int, keys: int) -> dict[str, Any]:
    lengths = {"q": queries, "k": keys, "v": keys}
    return {name: torch.randn(batch, 2, length, 8) for name, length in lengths.items()}


@pytest.mark.parametrize("training", [False, True])
def test_right_functions_are_right(training: bool) -> None:
    assert run_subject(plain.packed, training=training, dims=DIMS).verdict in RIGHT
    assert run_subject(plain.paged, training=training, dims=DIMS).verdict in ((Verdict.SKIPPED,) if training else RIGHT)


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
        return plain.packed(q, torch.where(within, k.detach(), k), v, cu_seqlens_k=cu_seqlens_k, **options)

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


@pytest.mark.parametrize("function", [plain.packed, plain.paged])
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
