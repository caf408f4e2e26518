"""Eager as the side that is wrong: operations that are by themselves, and all that only looks like it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from corpus.entry import load, loads
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question, build_check
from fuzz.check.judge.eager_audit import Audit, audit_eager
from fuzz.check.judge.modes import reference
from fuzz.check.run.program import Program, execute
from fuzz.protocol import Verdict
from fuzz.protocol.failures import FaultyOperation, Value
from generators.program.case import Case, Input, Region
from generators.program.emit import source as emitted
from generators.program.ops import make_op
from generators.program.regions import REGIONS
from generators.program.sizes import Size
from generators.program.type_check import check
from generators.sampling.sample import sample
from tests.check.client import Asker
from tests.check.in_process import is_nan_with_a_negative_scale, judge_case, plain, planted, source

DTYPES = ["float32", "bfloat16", "float16"]
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
NEGATIVE = source("return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)")


negative_scale = pytest.mark.skipif(not is_nan_with_a_negative_scale(), reason="this torch has no such bug")


def lost_row(a: Tensor, b: Tensor) -> Tensor:
    """bmm that loses a row in all dtypes but float64."""
    out = torch.stack([torch.mm(x, y) for x, y in zip(a, b, strict=True)])
    if a.dtype != torch.float64:
        out[0, 3] = 0
    return out


def lost_gradient(grad: Tensor, out: Tensor) -> Tensor:
    """tanh's backward, without the factor in all dtypes but float64."""
    return grad.clone() if grad.dtype != torch.float64 else grad * (1 - out * out)


def guilty(text: str, *, training: bool = False) -> str:
    """The operation that an audit finds wrong, "" for none."""
    program = Program(text)
    module = program.module(training)
    audit = Audit()
    execute(module, module, program.calls(module), training=training, mode=audit)
    return audit.faulty.operation if audit.faulty else ""


def judge_eager(text: str, *, training: bool = False) -> Any:
    program = Program(text)

    def run(mode: Any = None) -> Any:
        module = program.module(training)
        return execute(module, module, [program.inputs()], training=training, cotangents=cotangents, mode=mode)

    cotangents = None
    eager = run()
    cotangents = eager.cotangents
    exact = reference(program.module(training), program.calls, training=training, cotangents=cotangents)
    return audit_eager(eager, exact, run, torch.float32)


@negative_scale
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("subject", ["eager", "aot_eager", "passes"])
def test_eager_that_shares_its_kernel_with_what_is_compiled_is_the_suspect(
    worker: Asker, subject: str, training: bool
) -> None:
    result = worker.one(NEGATIVE, subject, training=training)
    assert result.verdict == Verdict.EAGER_SUSPECT
    failure = result.failure
    assert isinstance(failure, FaultyOperation) and failure.operation == FLASH
    assert failure.is_not_finite and math.isfinite(failure.exact)
    # The last query sees every key, and the kernel is right there.
    assert result.where is not None and result.where.ranges[2] == ((0, 15),)
    assert result.numbers["eager_error"] == float("inf") and result.numbers["scale"] < 10
    assert result.dynamo_same is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operation_that_is_wrong_in_one_row_is_named(dtype: str) -> None:
    assert guilty(plain(dtype)) == ""
    with planted("bmm", lost_row):
        assert guilty(plain(dtype)) == "aten.bmm"


def test_so_is_one_of_the_backward_pass() -> None:
    text = source("return torch.tanh(q) * v")
    with planted("tanh_backward", lost_gradient):
        assert guilty(text) == ""
        assert guilty(text, training=True) == "aten.tanh_backward"
        found = judge_eager(text, training=True)
    assert found.verdict == Verdict.EAGER_SUSPECT and found.failure.value == Value("input", 0, is_gradient=True)


def test_what_is_wrong_because_of_it_is_measured() -> None:
    text = source("return torch.bmm(q[0], k[0].mT).relu_().view(H, S, S)")
    with planted("bmm", lost_row):
        found = judge_eager(text)
    assert found.failure.given == 0.0 and found.numbers["eager_error"] > 1e-5
    assert (found.numbers["rows_wrong"], found.numbers["rows_total"]) == (1, 4 * 17)
    assert found.where.ranges[:2] == (((0, 0),), ((3, 3),))
    assert judge_eager(text) is None


_BIASED = "scores = q @ k.transpose(-2, -1) / 4.0 + rest[0]"
_MASKS = {
    "rows without a key": "torch.zeros(S, S).masked_fill(torch.ones(S, S).tril(-1) == 0, -torch.inf).to(torch.{dtype})",
    "rows of the lowest number": "torch.full((S, S), torch.finfo(torch.{dtype}).min).tril(-1).to(torch.{dtype})",
    "a bias on top of the lowest number": "(torch.randn(S, S, generator=rng(4)) * 100).to(torch.{dtype})"
    ".masked_fill(torch.ones(S, S).tril() == 0, torch.finfo(torch.{dtype}).min)",
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", _MASKS)
def test_masks_never_make_a_suspect(mask: str, dtype: str, training: bool) -> None:
    extra = _MASKS[mask].format(dtype=dtype)
    unfused = source(_BIASED, "return scores.softmax(dim=-1) @ v", dims="2, 4, 16, 16", dtype=dtype, extra=extra)
    fused = source(
        "return F.scaled_dot_product_attention(q, k, v, rest[0])", dims="2, 4, 16, 16", dtype=dtype, extra=extra
    )
    for text in (unfused, fused):
        assert guilty(text, training=training) == ""
        assert judge_eager(text, training=training) is None


@pytest.mark.parametrize(
    "body",
    [
        "return (q * 60000) @ k.transpose(-2, -1)",
        (
            "return (q * 3e4 * k).softmax(dim=-1), (q * 60000).pow(2).mean(dim=-1), "
            "torch.linalg.vector_norm(q * 30000, dim=-1)"
        ),
        "return torch.log(q), torch.sqrt(k), q / (k - k), (q - q) / (k - k)",
        "return torch.exp(q * 20), torch.logsumexp(q * 1000, dim=-1), F.layer_norm(q * 1000, [D])",
        (
            "low = k.masked_fill(k > 0, torch.finfo(k.dtype).min)\n"
            "return F.group_norm(low, 2), F.scaled_dot_product_attention(q, low[..., :1, :], v[..., :1, :])"
        ),
        (
            "far = torch.tensor([30000.0] * 4 + [-30000.0] * 4).to(q.dtype)[:, None]\n"
            "return F.embedding(torch.zeros(8, dtype=torch.int64), q[0, 0].abs()) * far"
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_overflow_and_what_has_no_answer_never_make_a_suspect(body: str, dtype: str) -> None:
    scaled = "q, k = q * 1e30, k * 1e30" if dtype == "float32" else "q, k = q * 4, k * 4"
    lines = body.split("\n")
    for text in (source(*lines, dtype=dtype), source(scaled, *lines, dtype=dtype)):
        assert guilty(text, training=True) == ""


@pytest.mark.parametrize(
    "body",
    [
        (
            "both = torch.cat([q, -q], dim=-1) * 1000\n"
            "return both.sum(dim=-1), both.mean(dim=(-2, -1)), q - q * (1 + 2**-7)"
        ),
        "return F.layer_norm(q.expand(60, B, H, S, D).reshape(-1, D) + 3, [D], v[0, 0, 0], k[0, 0, 0])",
        "return F.embedding(torch.zeros(4000, dtype=torch.int64), q[0, 0])",
        (
            "parts = q.unbind(1)\nparts[0].clone().add_(1).mul_(parts[1])[..., 1:].neg_()\n"
            "return q.transpose(1, 2).contiguous() * 2"
        ),
        "return F.gelu(q * 8), F.silu(k * 20), torch.cumsum(v, -1), torch.tanh(q * 10), F.dropout(q, 0.5, True)",
    ],
    ids=["cancellation", "long sums of a layer norm", "long sums of an embedding", "in place and views", "tails"],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_never_makes_a_suspect(body: str, dtype: str) -> None:
    assert guilty(source(*body.split("\n"), dtype=dtype), training=True) == ""


@pytest.mark.samples
def test_generated_programs_hold_no_suspect() -> None:
    for index in range(12):
        for case in (sample(2, index), sample(2, index, attention_only=True)):
            assert guilty(emitted(case, plain=True), training=case.training) == "", case.id


@pytest.mark.parametrize("form", ["plain", "causal", "mask", "grouped"])
def test_fused_attention_in_float64_is_the_math_backend(form: str) -> None:
    def operands() -> list[Tensor]:
        heads = 2 if form == "grouped" else 4
        shapes = [(2, 4, 6, 8), (2, heads, 6, 8), (2, heads, 6, 8)]
        seeds = (torch.Generator().manual_seed(seed) for seed in range(3))
        drawn = [torch.randn(s, dtype=torch.float64, generator=g) for s, g in zip(shapes, seeds, strict=True)]
        return [operand.requires_grad_() for operand in drawn]

    mask = torch.ones(6, 6).tril(-1).bool() if form == "mask" else None  # the first row sees no key

    class Module(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=form == "causal", scale=0.7, enable_gqa=form == "grouped"
            )

    def run(mode: Any = None) -> Any:
        return execute(Module(), nn.Module(), [operands()], training=True, mode=mode)

    with sdpa_kernel([SDPBackend.MATH]):
        exact = run()
    # Wrong everywhere, so that the audit puts everything right.
    audit = Audit()
    with planted_nan():
        repaired = run(audit)
    assert audit.faulty is not None and audit.faulty.operation == FLASH and audit.faulty.is_not_finite
    for name, value in exact.values.items():
        assert torch.allclose(repaired.values[name], value, rtol=0, atol=1e-13), name


@contextmanager
def planted_nan() -> Iterator[None]:
    """In this context fused attention on the CPU gives NaN, forward and backward."""

    def forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
        shape = q.shape[:-1]
        return q.new_full((*shape, v.size(-1)), torch.nan), q.new_full(shape, torch.nan)

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
        return tuple(torch.full_like(x, torch.nan) for x in (q, k, v))

    name = FLASH.removeprefix("aten.")
    with planted(name, forward), planted(f"{name}_backward", backward):
        yield


@pytest.mark.parametrize(
    ("known", "beside", "named"),
    [("while-loop-gradient", "cond", "while_loop"), ("jvp-of-a-custom-operation", "scan", "custom_op and jvp")],
)
def test_eagers_fault_names_the_regions_that_it_needs(shared: Evaluator, known: str, beside: str, named: str) -> None:
    case = load(Path(f"corpus/known/{known}.case.yaml")).case
    last = case.ops[-1].name
    apart = replace(
        case,
        ops=(*case.ops, make_op("negative", "neg", [last], {})),
        returns=("negative",),
        regions=(*case.regions, Region(beside, ("negative",), case.dims[0][0] if REGIONS[beside].loops else "")),
    )
    check(apart)
    result = shared.ask(Question(apart, ("eager",))).only
    assert isinstance(result.failure, FaultyOperation)
    assert result.failure.operation == named


OVERFLOWS_BESIDE = """
case_format: 1
dims: {T: 2, D: 1}
mode: inference
inputs:
  mask: {shape: [T], dtype: bool, values: {kind: random, seed: 0, scale: 0.5}}
  x: {shape: [D], dtype: float32, values: {kind: normal, seed: 1}}
ops:
- {name: scaled, op: div, args: [x], other: 1.0}
- {name: out, op: masked_fill, args: [scaled, mask]}
returns: [out]
regions:
- {kind: jvp, ops: [scaled]}
- {kind: custom_op, ops: [scaled]}
"""


def test_where_eager_and_float64_are_infinite_alike_a_region_is_right(shared: Evaluator) -> None:
    failure = shared.ask(Question(loads(OVERFLOWS_BESIDE).case, ("eager",))).only.failure
    assert isinstance(failure, FaultyOperation) and failure.given == 0.0 and math.isfinite(failure.exact)


PRODUCT_OF_ROWS = """
case_format: 1
dims: {B: 3, H: 2, S: 4, T: 5, D: 2}
mode: inference
inputs:
  x: {shape: [B, H, S, T], dtype: float32, values: {seed: 0}}
  "y": {shape: [T, D], dtype: float32, values: {seed: 1}}
ops:
- {name: out, op: matmul, args: [x, "y"]}
returns: [out]
regions:
- {kind: compile_region, ops: [out]}
- {kind: vmap, ops: [out], over: B}
"""


def test_an_operation_that_is_wrong_in_a_region_alone_is_named_in_its_place() -> None:
    def lost_last_row(a: Tensor, b: Tensor) -> Tensor:
        out = (a[:, :, None] * b).sum(1)
        out[23:] *= a.dtype == torch.float64  # vmap multiplies all rows at once, a loop 8 rows at a time
        return out

    with planted("mm", lost_last_row):
        result = judge_case(loads(PRODUCT_OF_ROWS).case, "eager")
    assert isinstance(result.failure, FaultyOperation) and result.failure.operation == "aten.mm"


def drop_probabilities(*kinds: str) -> Case:
    """A dropout that reads the result of regions."""
    case = Case(
        dims=(("B", 2), ("H", 2), ("S", 2), ("T", 2)),
        inputs=(Input("x", tuple(map(Size.of, ("B", "H", "S", "T"))), "bfloat16"),),
        ops=(make_op("probs", "softmax", ["x"], {}), make_op("out", "dropout", ["probs"], {"p": 0.5})),
        returns=("out",),
        mode="training",
        regions=tuple(Region(kind, ("probs",), "B" if REGIONS[kind].loops else "") for kind in kinds),
    )
    check(case)
    return case


# The result of a scan under vmap has other strides than that of loops. So dropout draws another mask.
@pytest.mark.parametrize("kinds", [("vmap", "scan"), ("scan",), ("custom_op",)])
def test_dropout_of_a_regions_result_shows_faults_of_eager_alone(worker: Asker, kinds: tuple[str, ...]) -> None:
    right = build_check(Question(drop_probabilities(*kinds), ("eager",)))
    wrong = replace(right, source=right.source.replace("x.softmax(dim=-1)", "x.softmax(dim=-1) * 1.1"))
    verdicts = [worker.answer(request).results[0].verdict for request in (right, wrong)]
    assert not verdicts[0].is_finding
    assert verdicts[1] is Verdict.EAGER_SUSPECT


GRADIENT_OF_THE_REGION_ALONE = """
case_format: 1
dims: {B: 4, H: 4, S: 4, T: 4, D: 4}
mode: training
inputs:
  q: {shape: [B, H, S, D], dtype: float16, values: {kind: normal, seed: 0}}
  k: {shape: [B, H, D, T], dtype: float16, values: {kind: normal, seed: 1}}
  v: {shape: [B, H, T, D], dtype: float16, values: {kind: normal, seed: 2}}
  mask: {shape: [B, 1, 1, T], dtype: float16, values: {kind: padding_mask, seed: 3, scale: -.inf}}
ops:
- {name: scores, op: matmul, args: [q, k]}
- {name: scores2, op: add, args: [scores, mask]}
- {name: probs, op: softmax, args: [scores2], dim: 2}
- {name: out, op: matmul, args: [probs, v]}
returns: [out]
regions:
- {kind: map, ops: [out], over: B}
- {kind: grad, ops: [out]}
"""


def test_eager_is_judged_where_a_region_alone_gives_a_gradient(shared: Evaluator) -> None:
    result = shared.ask(Question(loads(GRADIENT_OF_THE_REGION_ALONE).case, ("eager",))).only
    assert result.verdict is Verdict.EAGER_SUSPECT
