"""The oracle of attention: weights that round alike, dropout masks that can be read, and masks that can't."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.judge.attention.dropout_masks import check_dropout, extract_mask
from fuzz.check.judge.attention.judge import judge
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import load_sdpa as function
from fuzz.protocol import Verdict
from fuzz.protocol.failures import DropoutMask, Value
from tests.check.faults import declares
from tests.check.in_process import is_failure, run_subject
from tests.check.test_called_functions import RIGHT, right

FLASH = ("weights", "sums", "exponentials")
Function = Callable[..., Tensor]


def simulated(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """A flash kernel with one block of keys."""
    scores = (q.float() @ k.float().mT) * scale
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((p.to(q.dtype).float() @ v.float()) / p.sum(-1, keepdim=True)).to(q.dtype)


def called(attend: Function, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Call:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves, scale=scale)
    call = Call(q, k, v, {"scale": scale}, out.detach(), wanted=("dq", "dk", "dv"), differentiable=True)
    call.dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)
    call.gradients = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, call.dout), strict=True))
    return call


def two_groups(apart: float = 0.3) -> tuple[Tensor, Tensor, Tensor, float]:
    """512 keys of two scores, with values that cancel."""
    first = 218
    q, k, v = torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 512, 16), torch.ones(1, 1, 512, 16)
    q[..., 0], k[:, :, first:, 0], v[:, :, first:] = 1.0, -apart, -1.0
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), 1.0


def tokens(rows: int = 1024) -> tuple[Tensor, Tensor, Tensor, float]:
    """Embeddings of tokens drawn from a vocabulary of 16."""
    chance = torch.Generator().manual_seed(0)
    embedded = [torch.randn(16, 32, generator=chance).bfloat16() for _ in range(3)]
    drawn = torch.randint(16, (1, 1, rows), generator=chance)
    q, k, v = (table[drawn] for table in embedded)
    return q[:, :, :64], k, v, 32**-0.5


INPUTS = pytest.mark.parametrize(
    "given", [two_groups(), two_groups(0.9), tokens()], ids=["two groups", "further apart", "tokens"]
)


@INPUTS
@pytest.mark.parametrize("attend", [function("FLASH_ATTENTION"), simulated], ids=["flash on CPU", "simulated"])
def test_right_kernels_are_right(attend: Function, given: tuple[Tensor, Tensor, Tensor, float]) -> None:
    judgement = judge(called(attend, *given), FLASH)
    assert judgement.verdict in (Verdict.OK, Verdict.ROUNDING), judgement.failure


@INPUTS
def test_wrong_ones_are_wrong(given: tuple[Tensor, Tensor, Tensor, float]) -> None:
    def without_last_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        return simulated(q, k[:, :, :-16], v[:, :, :-16], scale=scale)

    def a_zeroed_row(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out = simulated(q, k, v, scale=scale)
        return torch.cat([torch.zeros_like(out[:, :, :1]), out[:, :, 1:]], 2)

    assert judge(called(without_last_keys, *given), FLASH).verdict.is_finding
    assert judge(called(a_zeroed_row, *given), FLASH).verdict.is_finding


Kept = Callable[[tuple[int, ...], float, int, Tensor], Tensor]
LOW = [torch.float32, torch.bfloat16, torch.float16]


def draw(shape: tuple[int, ...], p: float, seed: int, _weights: Tensor) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= p


def attending(kept: Kept = draw, scale_of: Callable[[float], float] = lambda p: 1 / (1 - p)) -> Callable[..., Tensor]:
    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: str | None = None,
        dropout: tuple[float, int] | None = None,
    ) -> Tensor:
        group = q.shape[1] // k.shape[1]
        keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
        scores = scale * (q.float() @ keys.mT)
        if causal is not None:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
        weights = scores.softmax(-1)
        if dropout is not None:
            weights = weights * kept(tuple(weights.shape), *dropout, weights) * scale_of(dropout[0])
        return (weights.to(q.dtype).float() @ values).to(q.dtype)

    return attention


def operands(dtype: torch.dtype = torch.float32, value_dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 65, 16), (2, 2, 80, 16), (2, 2, 80, value_dim))
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def check(function: Callable[..., Tensor], p: float = 0.2) -> list[DropoutMask]:
    return check_dropout(function, Call(*operands(), {"scale": 0.25, "dropout": (p, 7)}))[1]


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("value_dim", [16, 7, 128])
def test_the_mask_is_the_one_that_was_used(dtype: torch.dtype, value_dim: int) -> None:
    call = Call(*operands(dtype, value_dim), {"scale": 0.25, "dropout": (0.3, 7), "causal": "top_left"})
    expected = draw((2, 4, 65, 80), 0.3, 7, call.q)
    assert torch.equal(extract_mask(attending(), call), expected)


def test_it_is_whole_where_real_weights_underflow() -> None:
    q, k, v = operands(torch.float16)
    mask, found = check_dropout(attending(), Call(q * 100, k * 100, v, {"scale": 1.0, "dropout": (0.3, 7)}))
    assert torch.equal(mask, draw((2, 4, 65, 80), 0.3, 7, q)) and not found


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("causal", [None, "top_left"])
def test_a_right_function_has_no_problems(dtype: torch.dtype, p: float, causal: str | None) -> None:
    call = Call(*operands(dtype), {"scale": 0.25, "causal": causal, "dropout": (p, 7)})
    _, found = check_dropout(attending(), call)
    assert found == []


def test_right_masks_of_many_seeds_and_sizes_have_no_problems() -> None:
    found = []
    for seed in range(150):
        chance = torch.Generator().manual_seed(seed)
        batch, heads, rows, keys = (int(torch.randint(1, most, (), generator=chance)) for most in (4, 5, 40, 40))
        q, k, v = (
            torch.randn(batch, heads, rows, 4),
            torch.randn(batch, heads, keys, 4),
            torch.randn(batch, heads, keys, 16),
        )
        p = float(torch.rand((), generator=chance))
        found += check_dropout(attending(), Call(q, k, v, {"scale": 0.5, "dropout": (p, seed)}))[1]
    assert found == []


def of_part(axis: int, size: int) -> Kept:
    """One mask for all indices of an axis, or every `size` of them."""

    def kept(shape: tuple[int, ...], p: float, seed: int, weights: Tensor) -> Tensor:
        whole = draw(shape, p, seed, weights)
        return whole.index_select(axis, torch.arange(shape[axis]) % size)

    return kept


def first_keys_only(shape: tuple[int, ...], p: float, seed: int, weights: Tensor) -> Tensor:
    return draw(shape, p, seed, weights) | (torch.arange(shape[-1]) >= 64)


def by_weight(shape: tuple[int, ...], p: float, seed: int, weights: Tensor) -> Tensor:
    return draw(shape, p, seed, weights).gather(-1, weights.argsort(stable=True))


def restless(shape: tuple[int, ...], p: float, seed: int, _weights: Tensor) -> Tensor:
    return torch.rand(shape) >= p


WRONG: dict[str, tuple[Callable[..., Tensor], str, dict[str, Any]]] = {
    "p for 1 - p": (attending(lambda shape, p, *rest: draw(shape, 1 - p, *rest)), "keep_rate", {"expected": 0.8}),
    "p too high": (attending(lambda shape, p, *rest: draw(shape, 1.1 * p, *rest)), "keep_rate", {"expected": 0.8}),
    "the last keys always kept": (attending(first_keys_only), "keep_rate", {}),
    "one mask for all heads": (attending(of_part(1, 1)), "repeated", {"axis": "head", "lag": 1, "seen": 1}),
    "one mask for all batches": (attending(of_part(0, 1)), "repeated", {"axis": "batch", "lag": 1, "seen": 1}),
    "one mask for all tiles of queries": (attending(of_part(2, 32)), "repeated", {"axis": "query", "lag": 32}),
    "one mask for all tiles of keys": (attending(of_part(3, 16)), "repeated", {"axis": "key", "lag": 16}),
    "the seed ignored": (
        attending(lambda shape, p, _, w: draw(shape, p, 0, w)),
        "same_for_seeds",
        {"seeds": (7, 8), "seen": 1},
    ),
    "another mask at every call": (attending(restless), "not_repeatable", {"seeds": (7,)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mask_is_found(name: str) -> None:
    function, problem, fields = WRONG[name]
    found = [vars(one) for one in check(function) if one.problem == problem]
    assert any(all(one[field] == value for field, value in fields.items()) for one in found), check(function)


def test_another_mask_in_backward_is_a_wrong_gradient() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Tensor, weights: Tensor, p: float, seed: int) -> Tensor:
            ctx.save_for_backward(weights * draw(tuple(weights.shape), p, seed + 100, weights) / (1 - p))
            return (weights * draw(tuple(weights.shape), p, seed, weights) / (1 - p)) @ v

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
            return ctx.saved_tensors[0].mT @ gradients[0], None, None, None

    def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: tuple[float, int] = (0.0, 0)) -> Tensor:
        return product(v, (scale * (q @ k.mT)).softmax(-1), *dropout)

    product: Callable[..., Tensor] = Product.apply

    result = run_subject(attention, dropout=True, training=True)
    assert result.verdict is Verdict.WRONG_GRADIENT
    assert is_failure(result.failure, "wrong_value", value=Value.of_result("dv"))


def test_probabilities_of_zero_and_one_keep_all_and_nothing() -> None:
    assert check(attending(), p=0.0) == []
    assert check(attending(scale_of=lambda p: 0.0), p=1.0) == []
    (found,) = check(attending(lambda shape, p, *rest: draw(shape, 0.5, *rest)), p=0.0)
    assert (found.problem, found.p) == ("extreme_rate", 0.0)


def test_too_few_weights_to_tell_accuse_nobody() -> None:
    q = torch.randn(1, 1, 3, 4)
    _, found = check_dropout(attending(of_part(2, 1)), Call(q, q, q, {"scale": 0.5, "dropout": (0.5, 0)}))
    assert found == []


def test_dropout_has_to_be_asked_for() -> None:
    with pytest.raises(KeyError):
        check_dropout(attending(), Call(*operands(), {"scale": 1.0}))


NARROW = "2, 4, 80, 16"


def of_one_width(change: Callable[[Tensor], Tensor] = lambda out: out) -> Callable[..., Tensor]:
    """A function that takes values as wide as keys alone, so that its mask takes too many calls."""

    @declares(value_dim=False)
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any
    ) -> Tensor:
        return change(right(q, k, v, dropout=dropout, **options)) if dropout else right(q, k, v, **options)

    return attention


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_ones_accuse_nobody(training: bool, dtype: str) -> None:
    result = run_subject(of_one_width(), training=training, dropout=True, dims=NARROW, dtype=dtype)
    assert result.verdict is Verdict.RANDOM_STREAM, result.failure


@declares(value_dim=False)
def without_last_key(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return right(q, k[:, :, :-1], v[:, :, :-1], **options)


@declares(value_dim=False)
def with_wrong_gradient(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return right(q, k + 0.5 * (k - k.detach()), v, **options)


def one_mask_for_heads(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: tuple[float, int] | None = None
) -> Tensor:
    return torch.cat([right(q[:, [h]], k[:, [h]], v[:, [h]], scale=scale, dropout=dropout) for h in range(4)], 1)


FAULTS: dict[str, tuple[Function, str, dict[str, Any]]] = {
    "not finite under any mask": (of_one_width(lambda out: out * torch.nan), "not_finite", {"count": 10240}),
    "wrong without dropout": (without_last_key, "wrong_value", {"without_dropout": True}),
    "a gradient that is wrong without dropout": (with_wrong_gradient, "wrong_value", {"without_dropout": True}),
    "one mask for all heads": (one_mask_for_heads, "dropout_mask", {"problem": "repeated", "axis": "head", "lag": 1}),
    "not scaled": (attending(scale_of=lambda p: 1.0), "wrong_value", {"without_dropout": False}),
    "scaled twice": (attending(scale_of=lambda p: (1 - p) ** -2), "wrong_value", {"without_dropout": False}),
    "a mask that depends on scores": (attending(by_weight), "wrong_value", {"without_dropout": False}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_under_dropout_ends_as_its_verdict(name: str) -> None:
    function, kind, fields = FAULTS[name]
    training = function is with_wrong_gradient
    result = run_subject(function, dropout=True, training=training, dims=NARROW)
    wrong = Verdict.WRONG_GRADIENT if training else Verdict.WRONG_RESULT
    assert result.verdict is (Verdict.NONFINITE if kind == "not_finite" else wrong)
    where = {"seen": 1.0} if kind == "dropout_mask" else {"value": Value.of_result("dk" if training else "out")}
    assert is_failure(result.failure, kind, **fields, **where), result.failure


def test_a_mask_is_read_with_wider_values_where_they_are_taken() -> None:
    assert run_subject(right, dropout=True, training=True, dims=NARROW).verdict in RIGHT


def test_a_function_whose_mask_depends_on_the_width_of_values_is_not_accused() -> None:
    def by_width(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: tuple[float, int] | None = None) -> Tensor:
        return right(q, k, v, scale=scale, dropout=(dropout[0], dropout[1] + v.shape[3]) if dropout else None)

    assert run_subject(by_width, dropout=True, dims=NARROW).verdict is Verdict.RANDOM_STREAM
