"""How six projects decide whether an attention is right, as the project's notes on numerics give them.

Each criterion says whether a subject passes. Those of ratios take the low-precision eager result the project compares
with, the subject's and the float64 result, by name (out, dq, dk, dv, dbias), and judge every value there is; where the
project's own reference is float32, float64 stands for it unless a line says otherwise. The last two call the subject
themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import same

from benchmarks.oracle_power.problem import Outcome, Problem

FLASH_FACTORS = {"out": 2.0}
FLASH_GRADIENTS = 3.0
FLASH_KEPT = 0.01
PYTORCH_FUDGE = {"dq": 110.0}
"""5 is the default; of the factors in use for the gradient of queries, 110 to 1550, this is the strictest."""
FLEX_FACTOR = {torch.float32: 10.0}
CUDNN_ABSOLUTE = {torch.bfloat16: 7e-2}
PADDING = 8
"""Elements of NaN on every side of an input."""


def flash_attention(
    eager: Outcome, subject: Outcome, reference: Outcome, kept_share: float | None, dropout: float
) -> bool:
    """FlashAttention, tests/test_flash_attn.py: max|out - ref| <= 2 max|out_pt - ref|, gradients 3, and with dropout
    the share that is dropped within 0.01 of p. `eager` is `Problem.scale_first`, `reference` float32 rounded to the
    inputs' dtype (`Problem.single`; `Problem.exact` for float32, which is none of its dtypes)."""
    if kept_share is not None and not abs(1 - kept_share - dropout) <= FLASH_KEPT:
        return False
    return all(
        _largest(subject[name], ref) <= FLASH_FACTORS.get(name, FLASH_GRADIENTS) * _largest(eager[name], ref)
        for name, ref in reference.items()
        if name in subject
    )


def pytorch(eager: Outcome, subject: Outcome, exact: Outcome) -> bool:
    """PyTorch, test/test_transformers.py, `_check_equal`: max|res - fp64| <= max(1e-5, fudge max|eager - fp64|).
    `eager` is MATH (`Problem.math`)."""
    return all(
        _largest(subject[name], ref) <= max(1e-5, PYTORCH_FUDGE.get(name, 5.0) * _largest(eager[name], ref))
        for name, ref in exact.items()
        if name in subject
    )


def flex(eager: Outcome, subject: Outcome, exact: Outcome) -> bool:
    """PyTorch, test/inductor/test_flex_attention.py: mean|res - fp64| <= 1.1 mean|eager - fp64|, 10 for float32.
    `eager` is flex attention in eager mode (`Problem.flex`), whose scores are float32 in torch 2.13.0; against
    `Problem.naive`, 3 to 5 times less accurate, the rule sees far less. It has no dropout."""
    return all(
        _mean(subject[name], ref) <= FLEX_FACTOR.get(eager[name].dtype, 1.1) * _mean(eager[name], ref)
        for name, ref in exact.items()
        if name in subject
    )


def dynamo_same(eager: Outcome, subject: Outcome, exact: Outcome) -> bool:
    """torch._dynamo.utils.same with fp64_ref, as PyTorch asks fuzzers to judge by it. `eager` is `Problem.naive`."""
    names = [name for name in exact if name in subject]
    return bool(
        same(
            [eager[name] for name in names],
            [subject[name] for name in names],
            [exact[name] for name in names],
            equal_nan=True,
            log_error=lambda *_args, **_kwargs: None,
        )
    )


def xformers(problem: Problem, function: Callable[..., Tensor], subject: Outcome) -> bool:
    """xformers, tests/test_mem_eff_attention.py: inputs inside of storage that is NaN elsewhere, and bitwise equality
    with the run on plain inputs; here of a repeat, too. It asks what is read, not what is computed."""
    return all(
        _equal(subject[name], other[name])
        for other in (problem.run(function), _surrounded(problem).run(function))
        for name in subject
    )


def cudnn(problem: Problem, function: Callable[..., Tensor]) -> bool:
    """CuDNN frontend, test/python/test_mhas_v2.py: sparse small integers (here -2 to 2, three of four zero) amid NaN,
    compared with float32 eager by |res - ref| <= atol + 2e-2 |ref|, atol 2e-2, or 7e-2 for bfloat16 gradients."""
    generator = torch.Generator().manual_seed(0)

    def integers(x: Tensor) -> Tensor:
        drawn = torch.randint(-2, 3, x.shape, generator=generator) * (torch.rand(x.shape, generator=generator) < 0.25)
        return drawn.to(x.device, x.dtype).requires_grad_(x.requires_grad)

    options = dict(problem.options)
    if options.get("bias") is not None:
        options["bias"] = integers(options["bias"])
    drawn = replace(
        problem,
        q=integers(problem.q),
        k=integers(problem.k),
        v=integers(problem.v),
        options=options,
        dout=None if problem.dout is None else integers(problem.dout),
    )
    found, expected = _surrounded(drawn).run(function), drawn.math
    return all(
        torch.allclose(
            found[name].float(),
            expected[name].float(),
            rtol=2e-2,
            atol=2e-2 if name == "out" else CUDNN_ABSOLUTE.get(problem.q.dtype, 2e-2),
        )
        for name in expected
    )


@dataclass(frozen=True)
class Tried:
    """What one subject gave, and how it was called: enough for all six. `problem` holds its dropout mask."""

    problem: Problem
    function: Callable[..., Tensor]
    outcome: Outcome


def _flash_attention(tried: Tried) -> bool:
    problem = tried.problem
    reference = problem.exact if problem.q.dtype == torch.float32 else problem.single
    kept_share = problem.kept_share() if problem.dropout else None
    return flash_attention(problem.scale_first, tried.outcome, reference, kept_share, problem.dropout)


CRITERIA: dict[str, Callable[[Tried], bool | None]] = {
    "FA": _flash_attention,
    "PyTorch": lambda t: pytorch(t.problem.math, t.outcome, t.problem.exact),
    "flex": lambda t: None if t.problem.dropout else flex(t.problem.flex, t.outcome, t.problem.exact),
    "same": lambda t: dynamo_same(t.problem.naive, t.outcome, t.problem.exact),
    "xformers": lambda t: xformers(t.problem, t.function, t.outcome),
    "cuDNN": lambda t: cudnn(t.problem, t.function),
}
"""The criteria by the names of the table: whether a subject passes, None where the criterion does not apply."""


def _largest(value: Tensor, reference: Tensor) -> float:
    """The largest error; NaN, which passes no comparison, where one is not finite."""
    return float((value.double() - reference.double()).abs().max()) if value.numel() else 0.0


def _mean(value: Tensor, reference: Tensor) -> float:
    return float((value.double() - reference.double()).abs().mean()) if value.numel() else 0.0


def _equal(a: Tensor, b: Tensor) -> bool:
    integer: Any = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def _surrounded(problem: Problem) -> Problem:
    """The problem with q, k, v and the incoming gradient inside of larger storage full of NaN."""

    def inside(x: Tensor) -> Tensor:
        storage = x.new_full((*x.shape[:2], x.size(2) + 2 * PADDING, x.size(3) + PADDING), float("nan"))
        view = storage[:, :, PADDING : PADDING + x.size(2), : x.size(3)]
        return view.copy_(x)

    dout = None if problem.dout is None else inside(problem.dout)
    return replace(problem, q=inside(problem.q), k=inside(problem.k), v=inside(problem.v), dout=dout)
