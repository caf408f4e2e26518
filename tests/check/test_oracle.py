"""The reference, the noise and the judgement, each on its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzz.check.judge import constants
from fuzz.check.judge.modes import Float64Mode, HalvedSums, Noise, SkippedCasts, reference
from fuzz.check.judge.promises import keep_promised
from fuzz.check.judge.row_error_bound import Envelope
from fuzz.check.judge.verdict import Judge, RightRuns, find_form_difference, find_stride_difference
from fuzz.check.run.program import Execution, Program, execute
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory
from fuzz.compilers.interface import CompilerCapabilities
from fuzz.protocol import Verdict
from fuzz.protocol.failures import NotFinite, Value, WrongValue
from tests.check.in_process import plain, source

LOW = [torch.float32, torch.bfloat16, torch.float16]

V = Value("output", 0)


class Casting(nn.Module):
    """Attention that rounds wherever a program can ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        self.constant = torch.tensor([0.1])  # neither parameter nor buffer: `.double()` doesn't reach it

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q = (q @ self.weight).half().float().type_as(q)
        scores = (q.to(torch.bfloat16) @ k.to(torch.bfloat16).transpose(-2, -1)).float() * self.constant
        scores = scores + torch.zeros(4, 4, dtype=torch.float16) + torch.arange(4) / 3
        return functional.softmax(scores, dim=-1, dtype=torch.float32).to(torch.float16)


def exact(q: Tensor, k: Tensor, weight: Tensor) -> Tensor:
    return functional.softmax(
        (q @ weight) @ k.transpose(-2, -1) * float(torch.tensor(0.1)) + torch.arange(4.0).double() / 3, -1
    )


def once(*inputs: Tensor) -> Callable[..., list[list[Tensor]]]:
    return lambda _module, change: [list(map(change, inputs))]


def test_casts_in_a_module_do_not_round_its_reference() -> None:
    q, k = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    found = reference(Casting(), once(q, k), training=False, cotangents=None).outputs[V]
    assert found.dtype == torch.float64
    assert torch.allclose(found, exact(q.double(), k.double(), Casting().weight.double()), rtol=0, atol=1e-14)


def test_nor_its_gradients() -> None:
    q, k = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    cotangents = {V: torch.randn(2, 4, 4)}
    found = reference(Casting(), once(q, k), training=True, cotangents=cotangents).gradients
    leaves = [
        q.double().requires_grad_(),
        k.double().requires_grad_(),
        Casting().weight.detach().double().requires_grad_(),
    ]
    expected = torch.autograd.grad(exact(*leaves), leaves, cotangents[V].double())
    for name, grad in zip((Value("input", 0), Value("input", 1), Value("parameter", "weight")), expected, strict=True):
        assert torch.allclose(found[replace(name, is_gradient=True)], grad, rtol=0, atol=1e-13)


def test_a_reference_takes_attention_apart() -> None:
    program = Program(source("return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)"))
    found = reference(program.module(training=True), program.calls, training=True, cotangents=None)
    assert all(value.isfinite().all() for value in found.values.values())


def test_a_reference_leaves_the_default_dtype_alone() -> None:
    reference(nn.Identity(), once(torch.ones(1)), training=False, cotangents=None)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_reference_drops_what_the_program_drops(dtype: torch.dtype) -> None:
    module = nn.Dropout(0.4).train()
    low = execute(module, module, [[torch.ones(50, 7, dtype=dtype)]], training=True)
    high = reference(module, once(torch.ones(50, 7, dtype=dtype)), training=True, cotangents=low.cotangents)
    assert torch.equal(low.outputs[V] == 0, high.outputs[V] == 0)
    assert 0 < int((low.outputs[V] == 0).sum()) < 350


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_noise_moves_every_computed_value_by_one_ulp(dtype: torch.dtype) -> None:
    values = torch.randn(40, 50).to(dtype)
    with Noise(0) as noise:
        moved = values * 1.0
    ulps = (
        moved.view(torch.int32 if dtype == torch.float32 else torch.int16)
        - values.view(torch.int32 if dtype == torch.float32 else torch.int16)
    ).abs()
    assert ulps.min() == ulps.max() == 1
    assert noise.dtypes == [{dtype}]


def test_noise_leaves_masks_and_movement_alone() -> None:
    mask = torch.tensor([0.0, -torch.inf, torch.inf, torch.finfo(torch.float32).min, torch.nan])
    with Noise(1):
        added = mask + 0.0
        carried = torch.cat([mask.clone(), mask.view(1, 5).expand(2, 5)[1]]).to(torch.float64)
    assert torch.equal(added[:4], mask[:4]) and added[4].isnan()
    assert torch.equal(carried.nan_to_num(7.0), torch.cat([mask, mask]).double().nan_to_num(7.0))


def test_noise_moves_of_what_is_written_into_only_what_is_computed() -> None:
    values, place = torch.arange(1.0, 7.0), torch.tensor([1, 4])
    with Noise(1):
        moved = torch.zeros(6).copy_(values).index_put_((place,), torch.ones(2)).index_copy_(0, place, values[:2])
        added = values.clone().index_add_(0, place, torch.ones(2))
    assert moved.tolist() == [1.0, 1.0, 3.0, 4.0, 2.0, 6.0]
    assert (added != torch.tensor([1.0, 3.0, 3.0, 4.0, 6.0, 6.0])).nonzero().flatten().tolist() == [1, 4]


def test_what_was_unrounded_is_forgotten_where_it_is_written_over() -> None:
    with SkippedCasts(0):
        halves = torch.full((4,), 1 / 3).to(torch.float16)
        halves.transpose(0, 0).fill_(1.0)
        read = [(halves * 1.0).tolist() for _ in range(8)]
    assert read == [[1.0] * 4] * 8


@pytest.mark.parametrize("mode", [SkippedCasts(0), HalvedSums(0), Noise(0)])
def test_zeros_of_a_forward_derivative_stay_zeros_in_noise(mode: Any) -> None:
    x, y = torch.ones(3, dtype=torch.bfloat16), torch.full((3,), 2.0, dtype=torch.bfloat16)
    with mode:
        out, tangent = torch.func.jvp(lambda a: torch.stack([a * y, y * y]), (x,), (y,))[:2]
    assert tangent[1].eq(0).all() and tangent[0].gt(3).all() and out.isfinite().all()


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 2.0**-24), (torch.float64, 2.0**-53)])
def test_noise_moves_the_logarithm_of_a_sum_by_the_rounding_of_the_sum(dtype: torch.dtype, unit: float) -> None:
    scores = torch.tensor([[0.0, -16.0]])
    exact = scores.double().log_softmax(-1)
    with Noise(3):
        moved = scores.to(dtype).log_softmax(-1)
    assert 0.1 * unit < float((moved - exact)[0, 0].abs()) < 5 * unit


@pytest.mark.parametrize(
    "add_up",
    [
        lambda x: torch.addmm(x, x, x, alpha=3.0, beta=0.5),
        lambda x: torch.baddbmm(x[None], x[None], x[None], alpha=-0.125),
        lambda x: x.mean(0),
        lambda x: x.mean(),
        lambda x: x[None].sum((0, 2), keepdim=True),
        lambda x: x[:0].mean(0),
        lambda x: x[:, :0].sum(1, dtype=torch.float64),
    ],
)
@pytest.mark.parametrize("number", range(3))
def test_sums_in_halves_are_the_sums(add_up: Callable[[Tensor], Tensor], number: int) -> None:
    x = torch.arange(25.0).reshape(5, 5) / 7
    with HalvedSums(number):
        halved = add_up(x)
    torch.testing.assert_close(halved, add_up(x), equal_nan=True)


@pytest.mark.parametrize(("number", "total"), [(0, 2.0), (1, 0.0)])
def test_a_sum_over_all_axes_is_halved_along_any_of_them(number: int, total: float) -> None:
    """Rows cancel exactly. Columns round 1 off beside a number that is far larger."""
    x = torch.tensor([[1e8, -1e8], [1.0, 1.0]])
    with HalvedSums(number):
        assert x.sum() == total


def test_noise_reaches_the_backward_pass() -> None:
    def gradient(mode: Any) -> Tensor:
        leaf = torch.linspace(-1, 1, 30).requires_grad_()
        module = nn.Identity()
        run = execute(lambda x: torch.exp(x) * 3, module, [[leaf]], training=True, mode=mode)
        return run.gradients[Value("input", 0, is_gradient=True)]

    assert not torch.equal(gradient(None), gradient(Noise(2)))
    assert torch.allclose(gradient(None), gradient(Noise(2)), rtol=1e-6)


def envelope(exactly: Tensor, dtype: torch.dtype = torch.float32, noise: float = 1.0) -> Envelope:
    """A value whose eager and replicas are off by `noise` unit roundoffs."""
    unit = torch.finfo(dtype).eps / 2 * noise
    replicas = [(exactly * (1 + sign * unit)).to(dtype) for sign in (1, -1, 1)]
    return Envelope(exactly.to(dtype), exactly, replicas, dtype)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_rows_are_judged_by_their_own_size(dtype: torch.dtype) -> None:
    size = torch.tensor([[1.0], [0.25]], dtype=torch.float64).expand(2, 8)
    known = envelope(size, dtype)
    off = size.clone()
    off[1] += 40 * torch.finfo(dtype).eps * 0.5
    assert known.judge(V, size.to(dtype))[2]["ratio"] <= 1
    verdict, failure, numbers = known.judge(V, off.to(dtype))
    assert verdict is Verdict.WRONG_RESULT and numbers["ratio"] > 10
    assert isinstance(failure, WrongValue) and failure.index == (1, 0)


def test_a_row_that_is_exactly_zero_may_hold_the_rounding_of_its_tensor() -> None:
    values = torch.tensor([[0.0] * 4, [3.0] * 4], dtype=torch.float64)
    known = envelope(values)
    rounding, wrong = values.clone(), values.clone()
    rounding[0] = 4e-7
    wrong[0] = 1e-4
    assert known.judge(V, rounding.float())[2]["rows_wrong"] == 0
    assert known.judge(V, wrong.float())[2]["rows_wrong"] == 1


def test_noise_as_large_as_the_value_is_ill_conditioned() -> None:
    values = torch.ones(3, 4, dtype=torch.float64)
    verdict, _, numbers = envelope(values, noise=2.0**22).judge(V, values.float() * 1.1)
    assert verdict is Verdict.ILL_CONDITIONED and numbers["rows_wrong"] == 0


def test_what_is_not_finite_is_judged_by_position() -> None:
    values = torch.ones(2, 3, dtype=torch.float64)
    eager = values.float()
    eager[0, 1] = torch.nan
    known = Envelope(eager, values, [eager], torch.float32)
    verdict, failure, _ = known.judge(V, torch.ones(2, 3))
    assert (verdict, failure) == (Verdict.CONVENTION, None)
    bad = torch.full((2, 3), torch.inf)
    assert known.judge(V, bad)[1] == NotFinite(V, 5, (0, 0))


def test_a_fill_may_overflow_and_is_no_other_number() -> None:
    fill = torch.finfo(torch.float32).min
    exact = torch.tensor([[1.0, fill, 2.0]], dtype=torch.float64)
    known = Envelope(exact.float(), exact, [exact.float()], torch.float32)
    verdicts = [known.judge(V, torch.tensor([[1.0, x, 2.0]]))[0] for x in (fill, -torch.inf, 0.0)]
    assert verdicts == [Verdict.OK, Verdict.CONVENTION, Verdict.WRONG_RESULT]
    assert known.find_wrong(torch.tensor([[1.0, 0.0, 2.0]])).tolist() == [[False, True, False]]


def test_inputs_and_modules_are_the_same_every_time() -> None:
    program = Program(plain())
    first, second = program.inputs(), program.inputs()
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))


def test_what_a_run_writes_into_buffers_is_compared_and_put_back() -> None:
    module = nn.BatchNorm1d(3, affine=False)
    inputs = [torch.randn(8, 3) + 5]
    runs = [execute(module, module, [list(inputs)], training=True) for _ in range(2)]
    assert all(float(run.values[Value("buffer", "running_mean", is_written=True)].mean()) > 0.3 for run in runs)
    assert module.running_mean is not None and not module.running_mean.any()


def test_inputs_keep_their_strides_and_are_no_views() -> None:
    text = plain().replace("return [q, k, v]", "return [q.transpose(1, 2)[:, 1:], k.expand(3, *k.shape), v[..., ::2]]")
    program = Program(text)
    for given, made in zip(program.inputs(), program._names["inputs"](), strict=True):
        assert torch.equal(given, made)
        assert given.stride() == made.stride() and given.storage_offset() == made.storage_offset()
        assert not given._is_view()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_integers_are_wrong_only_where_right_runs_agree(dtype: torch.dtype) -> None:
    def run(*numbers: int) -> Execution:
        return Execution("tensor", {V: torch.tensor(numbers, dtype=dtype)})

    right = RightRuns(run(0, 0, 1), (run(0, 1, 1),))
    judge = Judge(run(0, 1, 1), lambda *_: right, lambda: torch.float32, random=False)
    assert judge.judge(run(0, 0, 1)).verdict is Verdict.ILL_CONDITIONED
    judgement = judge.judge(run(1, 0, 1))
    assert judgement.verdict is Verdict.WRONG_RESULT
    assert judgement.where is not None and judgement.where.wrong == 1


def test_an_output_on_another_device_is_another_form() -> None:
    def run(device: str) -> Execution:
        return Execution("tensor", {V: torch.ones(2)}, devices={V: device})

    different = find_form_difference(run("cuda"), run("cpu"))
    assert different is not None and different.aspect == "device"
    assert find_form_difference(run("cpu"), run("cpu")) is None


def test_replicas_for_one_subject_are_gone_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(value: Tensor) -> Execution:
        return Execution("tensor", {V: value})

    exact = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4)
    right = RightRuns(run(exact), (run(exact.float()),))
    judge = Judge(run(exact.float()), lambda *_: right, lambda: torch.float32, random=False)
    wrong, noisy = run(exact.float() * 1.01), RightRuns(run(exact), (run(exact.float() * 1.001),))
    assert not judge.judge(wrong, others=noisy).verdict.is_finding

    def exhausted(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch, SuppressOutOfMemory() as memory:
        patch.setattr("fuzz.check.judge.verdict.locate", exhausted)
        judge.judge(run(exact.float() * 1.2), others=noisy)
    assert memory.line
    assert judge.judge(wrong).verdict is Verdict.WRONG_RESULT


def test_only_a_failed_allocation_is_suppressed() -> None:
    with SuppressOutOfMemory() as memory:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    assert memory.line
    with pytest.raises(ValueError, match="no"), SuppressOutOfMemory():
        raise ValueError("no")


@pytest.mark.parametrize("dtype", constants.LOW_PRECISION_DTYPES, ids=str)
def test_a_gradient_below_the_roundoff_of_the_largest_one_is_judged(dtype: torch.dtype) -> None:
    exact = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4) * torch.finfo(dtype).eps / 4
    known = Envelope(exact.to(dtype), exact, [exact.to(dtype)], dtype, terms=1.0)
    assert known.judge(V, torch.zeros_like(exact, dtype=dtype))[2]["rows_wrong"] == 3


def test_a_noisy_tensor_excuses_no_steady_row() -> None:
    exact = torch.ones(5, 4, dtype=torch.float64)
    noisy = exact.clone()
    noisy[1:] *= 1.1
    known = Envelope(exact.float(), exact, [noisy.float()], torch.float32)
    wrong = exact.float()
    wrong[0] *= 1.01
    assert known.judge(V, wrong)[2]["rows_wrong"] == 1


def depend_on_choice(*rows: Sequence[float]) -> Envelope:
    """A row whose elements may have the values of any of these rows, which right runs give in turn."""
    runs = [torch.tensor([rows[number % len(rows)]], dtype=torch.float64) for number in range(60)]
    return Envelope(runs[0].float(), runs[0], [runs[0].float()], torch.float32, chosen=[run.float() for run in runs])


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ((1.0, 5.0, 3.0), 0),
        ((2.0, 5.0, 3.0), 0),
        ((0.9, 5.0, 3.0), 1),
        ((2.2, 5.0, 3.0), 1),
        ((2.0, 5.5, 3.0), 1),
        ((2.0, 5.0, -3.0), 1),
    ],
)
def test_an_element_is_excused_by_values_that_choices_give_it(given: tuple[float, ...], wrong: int) -> None:
    known = depend_on_choice((1.0, 5.0, 3.0), (2.0, 5.0, 3.0))
    verdict, _, numbers = known.judge(V, torch.tensor([given]))
    assert numbers["rows_wrong"] == wrong and int(known.find_wrong(torch.tensor([given])).sum()) == wrong
    assert verdict is (Verdict.WRONG_RESULT if wrong else Verdict.OK if given[0] == 1 else Verdict.ILL_CONDITIONED)


def test_of_many_possible_values_most_lie_within_those_seen() -> None:
    rows = torch.rand(60, 40, generator=torch.Generator().manual_seed(0)).tolist()
    known = depend_on_choice(*rows)
    few, many, far = torch.full((1, 40), 0.5), torch.full((1, 40), 1.2), torch.full((1, 40), 0.5)
    few[0, :3], far[0, 0] = 1.2, 3.0
    wrong = [bool(known.judge(V, value)[2]["rows_wrong"]) for value in (few, many, far)]
    assert wrong == [False, True, True]


def test_float64_leaves_sums_of_numbers_alone() -> None:
    """Sizes are added so within the operations that torch writes in Python."""
    mode: Any = Float64Mode
    add: Any = torch.ops.aten.add.float
    with mode():
        assert add(1.5, 2.5) == 4.0


@pytest.mark.parametrize(
    "expected",
    [
        torch.arange(12.0).view(3, 4).mT,
        torch.arange(12.0).view(3, 4).mT[None],
        torch.arange(24.0).view(3, 8)[:, ::2].mT.expand(2, 4, 3).mT,
        torch.arange(10.0).unfold(0, 4, 2).mT,
    ],
    ids=["transposed", "with a dimension of size 1", "repeated", "overlapping"],
)
def test_strides_count_for_compilers_that_promise_them(expected: Tensor) -> None:
    eager = Execution("tensor", {V: expected})
    run = Execution("tensor", {V: expected.contiguous() + 1})
    kept = keep_promised(run, eager, CompilerCapabilities())
    assert find_stride_difference(eager, kept) is None
    assert torch.equal(kept.outputs[V], expected + 1)
    promising = keep_promised(run, eager, CompilerCapabilities(strides=True))
    assert find_stride_difference(eager, promising) is not None
