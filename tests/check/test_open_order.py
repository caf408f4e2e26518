"""Results that torch leaves open: the order of equal elements and of writes, choices, and runs that differ."""

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.choices import ChoiceMode
from fuzz.check.judge.doubt import is_documented
from fuzz.check.judge.eager_audit import Audit
from fuzz.check.judge.open_orders import OPEN, AnotherOrder, Open
from fuzz.check.run.program import same_bits, same_numbers
from fuzz.check.run.subject_builder import Subject, find
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import Nondeterministic, Value
from tests.check.faults import declares, with_gradient
from tests.check.in_process import changing, run_subject, source
from tests.check.test_called_functions import RIGHT, right

TIED = "(q > 0).to(q.dtype)"
PLACES = "torch.arange(S) % 3"
BODIES = [
    "(q > 0).long().sort(dim=-1).indices",
    "(q > 0).int().argsort(dim=-1)",
    f"{TIED}.topk(3).indices",
    f"v.gather(-1, {TIED}.topk(3).indices)",
    f"q.clone().index_copy_(2, {PLACES}, k)",
    "q.clone().index_put_((torch.zeros(B, dtype=torch.int64),), k)",
    f"q.scatter(2, ({PLACES}).view(1, 1, S, 1).expand(B, H, S, D), k)",
    "q.clone().put_(torch.arange(6) % 2, k.flatten()[:6])",
]


def in_order(number: int) -> Subject:
    """A subject that runs in another order."""

    def make(module: nn.Module, _dynamic: bool | None) -> Any:
        def run(*inputs: Tensor) -> Any:
            with AnotherOrder(number):
                return module(*inputs)

        return run

    return Subject("package.module:planted", make)


@pytest.mark.parametrize("number", [0, 977])
@pytest.mark.parametrize("body", BODIES)
def test_another_order_that_is_left_open_is_no_finding(body: str, number: int) -> None:
    assert run_subject(in_order(number), text=source(f"return {body}")).verdict is Verdict.CONVENTION


@pytest.mark.parametrize("change", [lambda value: value * 1.1, torch.neg, lambda value: value.flip(1)])
@pytest.mark.parametrize("body", [body for body in BODIES if "int()" not in body and not body.endswith("indices")])
def test_values_that_no_order_gives_are_findings(body: str, change: Any) -> None:
    assert run_subject(changing(change), text=source(f"return {body}")).verdict is Verdict.WRONG_RESULT


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ("q.sort(dim=-1).indices", lambda value: value + 1),
        ("(q > 0).long().sort(dim=-1, stable=True).indices", lambda value: value.flip(-1)),
        ("(q > 0).long().sort(dim=-1).values", lambda value: value.flip(-1)),
        ("q.clone().index_copy_(2, torch.arange(S), k)", lambda value: value.flip(-1)),
        ("q.clone().index_put_((torch.arange(B) * 0,), k, accumulate=True)", lambda value: value.flip(-1)),
        ("q.scatter(2, torch.zeros(B, H, S, D, dtype=torch.int64), 2.0)", lambda value: value.flip(-1)),
    ],
    ids=["no two are equal", "a stable sort", "the values", "each place once", "a sum", "one number"],
)
def test_results_that_do_not_depend_on_an_order_are_findings(body: str, change: Any) -> None:
    assert run_subject(changing(change), text=source(f"return {body}")).verdict is Verdict.WRONG_RESULT


# Sums of 0 and 1 are often equal, and noise of an ulp orders them. The other half of each row depends on no order.
ORDERED_BY_NOISE = (
    f"places = {TIED}.sum(-1).topk(3).indices",
    "chosen = v.gather(2, places.unsqueeze(-1).expand(B, H, 3, D))",
    "return torch.cat([v[:, :, :3] + q[:, :, :3], chosen], -1)",
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", [slice(0, 16), slice(16, 32), slice(0, 32)], ids=["certain", "chosen", "all"])
@pytest.mark.parametrize("factor", [1.1, -1.0])
def test_noise_that_decides_an_order_excuses_no_other_value(factor: float, part: slice, dtype: str) -> None:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., part] *= factor
        return value

    assert run_subject(changing(change), text=source(*ORDERED_BY_NOISE, dtype=dtype)).verdict is Verdict.WRONG_RESULT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("number", [0, 5, 977])
def test_an_order_that_noise_decides_is_no_finding(number: int, dtype: str) -> None:
    found = run_subject(in_order(number), text=source(*ORDERED_BY_NOISE, dtype=dtype))
    assert found.verdict in (Verdict.ILL_CONDITIONED, Verdict.CONVENTION)


@pytest.mark.parametrize(("factor", "is_faulty"), [(1.0, False), (1.1, True)])
def test_eager_is_not_accused_of_an_order_that_is_left_open(factor: float, is_faulty: bool) -> None:
    written = torch.randn(3, 4)
    taken = torch.zeros(2, 4), 0, torch.zeros(3, dtype=torch.int64), written
    audit, copy = Audit(), torch.ops.aten.index_copy.default
    audit.compare(copy, copy, (taken, {}), torch.stack([written[1] * factor, torch.zeros(4)]))
    assert (audit.faulty is not None) is is_faulty


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1),
        lambda x: x.topk(3, 1),
        lambda x: x.max(1),
        lambda x: x.min(0, keepdim=True),
        lambda x: x.median(-1),
        lambda x: x.kthvalue(2, 0),
        lambda x: x.cummax(-1),
        lambda x: functional.max_pool2d(x[None], 2, return_indices=True),
        lambda x: (x, x.argmax(-1)),
        lambda x: (x, x > 0.5),
        lambda x: (x, (x * 4).round()),
        lambda x: (x, (x * 4).long()),
    ],
)
def test_a_run_makes_the_choices_of_another(function: Any) -> None:
    first, other = (torch.rand(8, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    made, again, free = ChoiceMode(), ChoiceMode(), ChoiceMode()
    with made:
        _, expected = function(first)
    with free:
        function(other)
    held = ChoiceMode(made)
    with held:
        values, places = function(other)
    with again:
        function(first)
    assert made.differ(free) and not made.differ(again) and not made.differ(held)
    assert torch.equal(places, expected)
    assert bool(torch.isin(values, other).all())


def test_a_choice_of_numbers_too_far_apart_is_none() -> None:
    value = torch.tensor([300.0, 3.0], dtype=torch.bfloat16)
    made = ChoiceMode()
    with made:
        value.floor()
    with ChoiceMode(made):
        assert torch.equal((value + torch.tensor([4.0, 1.0])).to(torch.bfloat16).floor(), torch.tensor([304.0, 3.0]))


def _read(text: str) -> str:
    return " ".join(re.sub(r":\w+:|[`*\\]", "", text).split())


@pytest.mark.parametrize("row", OPEN, ids=lambda row: min(row.operations))
def test_the_documentation_says_so(row: Open) -> None:
    name = row.source.removesuffix(".html").rpartition("/")[2].split(".", 1)[1]
    owner: Any = torch
    for part in name.split("."):
        owner = getattr(owner, part)
    assert _read(row.sentence) in _read(owner.__doc__)


def restless(**capabilities: Any) -> Any:
    runs = itertools.count()

    @declares(**capabilities)
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return with_gradient(right(q, k, v, **options), lambda gradient: gradient * (1 + next(runs) % 2 * 2.0**-22))

    return attention


@pytest.mark.parametrize("dropout", [False, True])
def test_a_function_that_gives_other_gradients_the_second_time_is_told(dropout: bool) -> None:
    result = run_subject(restless(), training=True, dropout=dropout)
    assert result.verdict is Verdict.NONDETERMINISTIC
    assert result.failure == Nondeterministic(Value("input", 0, is_gradient=True))


def test_one_that_does_not_promise_it_is_not() -> None:
    assert run_subject(restless(deterministic=("cuda",)), training=True).verdict in RIGHT


def test_nobody_is_accused_where_eager_does_not_repeat_itself() -> None:
    text = source(
        "rng.calls = getattr(rng, 'calls', 0) + 1",
        "return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v * (1 + rng.calls % 2 * 2.0**-22)",
    )
    result = run_subject(Subject("eager"), text=text)
    assert result.verdict in RIGHT, result.failure


@pytest.mark.parametrize("settings", [{}, {"use_deterministic_algorithms": True}, {"deterministic": True}])
def test_runs_that_differ_are_told(settings: dict[str, Any]) -> None:
    runs = itertools.count()
    unstable = changing(lambda out: out * (1 + next(runs) % 2 * 2.0**-22), "inductor_options")
    result = run_subject(unstable, settings=settings)
    assert result.failure == Nondeterministic(Value("output", 0))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("q.new_zeros(B).put_(torch.zeros(1, dtype=torch.long), q[:1, 0, 0, 0])", True),  # no deterministic algorithm
        ("q.new_zeros(B).scatter_add(0, torch.zeros(B, dtype=torch.long), q[:, 0, 0, 0])", True),  # another one
        ("q.new_zeros(B).index_put((torch.zeros(B, dtype=torch.long),), q[:, 0, 0, 0], accumulate=True)", True),
        ("q @ k.transpose(-2, -1)", False),
    ],
)
def test_what_torch_documents_is_told_from_what_should_repeat(line: str, expected: bool) -> None:
    request = Check(id=0, source=source(f"return {line}"), subjects=())
    case = CaseRun(request, "cpu", lambda _: None)
    assert is_documented(case, find("passes")) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_zero_is_a_bit_and_no_number(dtype: torch.dtype) -> None:
    positive, negative = (torch.tensor([zero, torch.nan, -1.0], dtype=dtype) for zero in (0.0, -0.0))
    assert same_numbers(positive, negative) and not same_bits(positive, negative)
    assert same_bits(negative, torch.tensor([-0.0, -torch.nan, -1.0], dtype=dtype))
