"""What is wrong with the output of a call with dropout whatever its mask is, for functions whose mask can't be read.

With P the weights before dropout of p, each is dropped by itself, so that an output is sum_j P_ij v_j m_ij / (1 - p) with
m_ij = 1 for what is kept: no larger than sum_j P_ij |v_j| / (1 - p), 0 only where all that counts is dropped, and on the whole
what it is without dropout. How far sums may be from that is Hoeffding's inequality, for any p and any scores.
"""

import math

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import score_error, shaky
from fuzz.check.oracle.attention.exact import Exact
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.oracle.where import where
from fuzz.protocol import Verdict


def without_mask(call: Call, rounds: tuple[str, ...]) -> Judgement | None:
    """What is wrong with `call.out` for every mask of its dropout, or all but ones nobody meets; None for nothing."""
    out, (p, _) = call.out, call.options["dropout"]
    if out is None or not out.numel():
        return None
    exact = Exact.of(call.but(dropout=None))
    firm = exact.live & ~shaky(exact, rounds)
    more = 1 / (1 - p) if p < 1 else 0.0
    unit, tiny = constants.UNIT_ROUNDOFF[out.dtype], torch.finfo(out.dtype).smallest_normal
    errors = score_error(exact, rounded="scores" in rounds)
    ds = errors.amax(-1, keepdim=True) if errors.size(-1) else torch.zeros_like(exact.peak)
    largest = more * (exact.weights @ exact.v.abs()) * (1 + constants.UNREAD_ROUNDING * unit) * (2 * ds).exp() + tiny
    lost = firm & ~out.isfinite() & (largest < torch.finfo(out.dtype).max)
    if bool(lost.any()):
        return _told(Verdict.NONFINITE, f"{int(lost.sum())} elements not finite, first at {_first(lost)}", lost)
    beyond = firm & (out.double().abs() > largest)
    if bool(beyond.any()):
        text = f"{int(beyond.sum())} elements larger than any dropout mask makes them, first at {_first(beyond)}"
        return _told(Verdict.WRONG_RESULT, text, beyond)
    if not 0 < p < 1:
        return None
    empty = _surely_not_zero(exact, p, tiny) & firm & (out == 0).all(-1, keepdim=True)
    if bool(empty.any()):
        text = f"{int(empty.sum())} rows are 0, which no dropout mask makes them, first at {_first(empty)[:-1]}"
        return _told(Verdict.WRONG_RESULT, text, empty.expand_as(out))
    return _off(
        exact, out.double().masked_fill(~firm, 0.0), p, firm, unit + 2 * float(ds[firm].max() if firm.any() else 0.0)
    )


def _surely_not_zero(exact: Exact, p: float, tiny: float) -> Tensor:
    """Rows, [..., 1], of so many weights that to drop all of them is out of the question."""
    large = exact.weights * exact.v.abs().amax(-1).unsqueeze(-2) > constants.MASK_LARGE * tiny
    return large.sum(-1, keepdim=True) * -math.log(p) > constants.MASK_DOUBT


def _off(exact: Exact, out: Tensor, p: float, firm: Tensor, slack: float) -> Judgement | None:
    """That all heads, or one, along their exact outputs without dropout, are further from those than masks take them."""
    along = exact.results["out"].masked_fill(~firm, 0.0)
    terms = exact.weights * (along @ exact.v.mT) / (1 - p)
    squares, mine, theirs = (x.sum((-1, -2)) for x in (terms.square(), out * along, along.square()))
    rounding = slack * (along.abs() * (out.abs() + along.abs())).sum((-1, -2))
    for of in ("all of it", "a head"):
        if of == "all of it":
            parts = [x.sum().reshape(1, 1) for x in (squares, mine, theirs, rounding)]
        else:
            parts = [squares, mine, theirs, rounding]
        square, found, expected, rounded = parts
        apart = ((found - expected).abs() - rounded).clamp(min=0)
        doubt = 2 * apart.square() / square.masked_fill(square == 0, torch.inf)
        wrong = doubt > constants.MASK_DOUBT
        if bool(wrong.any()):
            at = tuple(_first(doubt == doubt.max()))
            name = of if of == "all of it" else f"head {list(at)}"
            share = float(found[at] / expected[at])
            text = f"{name} is {share:.3g} times what it is without dropout, which no dropout mask makes it"
            return _told(Verdict.WRONG_RESULT, text, wrong[..., None, None].expand_as(out))
    return None


def _told(verdict: Verdict, text: str, wrong: Tensor) -> Judgement:
    rows = wrong.any(-1)
    numbers = {"rows_wrong": float(rows.sum()), "rows_total": float(rows.numel())}
    return Judgement(verdict, f"out: {text}", numbers, "out", where("out", wrong))


def _first(wrong: Tensor) -> list[int]:
    first: list[int] = torch.nonzero(wrong)[0].tolist()
    return first
