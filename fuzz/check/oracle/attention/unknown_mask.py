"""What is wrong with the output of a call with dropout whatever its mask is, for functions whose mask can't be read.

With P the weights before dropout of p, each is dropped by itself, so that an output is sum_j P_ij v_j m_ij / (1 - p)
with m_ij = 1 for what is kept: no larger than sum_j P_ij |v_j| / (1 - p), 0 only where all that counts is dropped, and
on the whole what it is without dropout. How far sums may be from that is Hoeffding's inequality, for any p and any
scores.
"""

import math

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import ill_conditioned, score_error
from fuzz.check.oracle.attention.exact import Exact
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.oracle.where import first_index, locate
from fuzz.protocol import Verdict
from fuzz.protocol.failures import ImpossibleUnderDropout, NotFinite


def judge_unknown_mask(call: Call, rounds: tuple[str, ...]) -> Judgement | None:
    """What is wrong with `call.out` for every mask of its dropout, or all but ones nobody meets; None for nothing."""
    out, (p, _) = call.out, call.options["dropout"]
    if out is None or not out.numel():
        return None
    exact = Exact.of(call.but(dropout=None))
    firm = exact.live & ~ill_conditioned(exact, rounds)
    more = 1 / (1 - p) if p < 1 else 0.0
    unit, tiny = constants.UNIT_ROUNDOFF[out.dtype], torch.finfo(out.dtype).smallest_normal
    errors = score_error(exact, rounded="scores" in rounds)
    ds = errors.amax(-1, keepdim=True) if errors.size(-1) else torch.zeros_like(exact.peak)
    largest = more * (exact.weights @ exact.v.abs()) * (1 + constants.UNREAD_ROUNDING * unit) * (2 * ds).exp() + tiny
    lost = firm & ~out.isfinite() & (largest < torch.finfo(out.dtype).max)
    if bool(lost.any()):
        return _judgement(NotFinite("out", int(lost.sum()), first_index(lost)), lost)
    beyond = firm & (out.double().abs() > largest)
    if bool(beyond.any()):
        failure = ImpossibleUnderDropout("out", "too_large", int(beyond.sum()), first_index(beyond))
        return _judgement(failure, beyond)
    if not 0 < p < 1:
        return None
    empty = _surely_not_zero(exact, p, tiny) & firm & (out == 0).all(-1, keepdim=True)
    if bool(empty.any()):
        failure = ImpossibleUnderDropout("out", "zero_rows", int(empty.sum()), first_index(empty)[:-1])
        return _judgement(failure, empty.expand_as(out))
    return _check_expectation(
        exact, out.double().masked_fill(~firm, 0.0), p, firm, unit + 2 * float(ds[firm].max() if firm.any() else 0.0)
    )


def _surely_not_zero(exact: Exact, p: float, tiny: float) -> Tensor:
    """Rows, [..., 1], of so many weights that to drop all of them is out of the question."""
    large = exact.weights * exact.v.abs().amax(-1).unsqueeze(-2) > constants.MASK_LARGE * tiny
    return large.sum(-1, keepdim=True) * -math.log(p) > constants.MASK_NEG_LOG_PROBABILITY


def _check_expectation(exact: Exact, out: Tensor, p: float, firm: Tensor, slack: float) -> Judgement | None:
    """A finding where all heads, or one, lie further from the output without dropout than masks explain."""
    along = exact.results["out"].masked_fill(~firm, 0.0)
    terms = exact.weights * (along @ exact.v.mT) / (1 - p)
    squares, mine, theirs = (x.sum((-1, -2)) for x in (terms.square(), out * along, along.square()))
    rounding = slack * (along.abs() * (out.abs() + along.abs())).sum((-1, -2))
    heads = [squares, mine, theirs, rounding]
    whole = [part.sum().reshape(1, 1) for part in heads]
    for parts in (whole, heads):
        square, found, expected, rounded = parts
        apart = ((found - expected).abs() - rounded).clamp(min=0)
        doubt = 2 * apart.square() / square.masked_fill(square == 0, torch.inf)
        wrong = doubt > constants.MASK_NEG_LOG_PROBABILITY
        if bool(wrong.any()):
            at = first_index(doubt == doubt.max())
            head, share = () if parts is whole else at, float(found[at] / expected[at])
            failure = ImpossibleUnderDropout("out", "off_expectation", index=head, share=share)
            return _judgement(failure, wrong[..., None, None].expand_as(out))
    return None


def _judgement(failure: NotFinite | ImpossibleUnderDropout, wrong: Tensor) -> Judgement:
    verdict = Verdict.NONFINITE if isinstance(failure, NotFinite) else Verdict.WRONG_RESULT
    rows = wrong.any(-1)
    numbers = {"rows_wrong": float(rows.sum()), "rows_total": float(rows.numel())}
    return Judgement(verdict, failure, numbers, "out", locate("out", wrong))
