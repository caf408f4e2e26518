"""How far rounding may take an attention kernel from float64, to first order, for every element of its results.

With s the scores, P = softmax(s), o = P v, dP = do v^T, delta = sum_d o do, dS = P (dP - delta), all in float64.
The unit roundoffs are ua of float32 (the accumulators), uw of the dtype of P and dS, us of the dtype of scores and dP
(0 for kernels that keep them in float32), and u of the results:

    ds    = ua (|scale| sum_d |q||k| + 2|s| + (max s - s) + |bias|) + us (2|scale q k| + |s|)  absolute error of a score
    o     : u|o| + uw (sqrt(sum_j P^2 v^2) + |P|_2 |o|) + sum_j P ds |v - o| + (2 + sqrt(kv_len)/2) ua sum_j P|v|
    delta : u sqrt(sum_d (o do)^2) + uw (|P dP|_2 + |P|_2 |delta|) + sum_j P ds |dP - delta|
            + sqrt(sum_d (do T_o)^2) + us |P dP|_2       T_o: the last term of the bound of o
    dv    : u|dv| + uw sqrt(sum_i P^2 do^2) + sum_i P (ds + dlse + 2 ua)|do|
    dS    : |dS|(ds + dlse + 2 ua) + P (ua sum_d |do||v| + us |dP|), and uw |dS| at random
    dsinks: u|dsinks| + sum p_sink (e(delta) + |delta|(dlse + 2 ua))           over batches and queries
    dq, dk: u|dq| + |scale| (uw sqrt(sum dS^2 k^2) + sum e(dS)|k| + e(delta)|sum_j P k|)

Rounding errors of one sign add linearly, random errors in quadrature. The forward formula is from the
project's notes on numerics, and the formulas of gradients follow from the backward pass in the same way. A number in
float16 is also off by half the smallest subnormal. A weight below float32's normal numbers may be flushed to 0.
"""

import math

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.constants import UNIT_ROUNDOFF
from fuzz.check.run.attention.call import Exact, sum_groups


def score_error(exact: Exact, *, rounded: bool) -> Tensor:
    """ds: the error of each score, [batch, heads, seq_len, kv_len]; 0 for scores of -inf."""
    ua = UNIT_ROUNDOFF[torch.float32]
    s = exact.scores
    terms = exact.terms + _feature_drift(exact.q, exact.k) * exact.products.abs()
    error = ua * (terms + 2 * s.abs() + (exact.peak - s))
    if rounded:
        error = error + UNIT_ROUNDOFF[exact.dtype] * (2 * exact.products.abs() + s.abs())
    return error.where(s.isfinite(), torch.zeros_like(s))


def compute_error_bounds(
    exact: Exact, rounds: tuple[str, ...] = ("weights",), dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The error bound of each element of `exact.results`, by name, for results in `dtype`, by default the inputs'.

    `rounds`: the intermediate values that the kernel rounds to the inputs' dtype:
    - "weights", and gradients of scores
    - "scores", and gradients of weights
    - "sums": dk and dv, after each block of queries
    """
    dtype = dtype or exact.dtype
    unit, ua = UNIT_ROUNDOFF[dtype], UNIT_ROUNDOFF[torch.float32]
    us = unit if "scores" in rounds else 0.0
    uw = unit if "weights" in rounds else ua
    limits = torch.finfo(dtype)
    flushed = torch.finfo(torch.float32).smallest_normal
    tiny, least = limits.smallest_normal, limits.smallest_normal * limits.eps / 2 + flushed
    q, k, v, p, used, o = exact.q, exact.k, exact.v, exact.weights, exact.used, exact.results["out"]
    ds = score_error(exact, rounded=bool(us))
    dlse = (p * ds).sum(-1, keepdim=True)
    finite = exact.scores.isfinite().double()
    by_p = uw * ((used**2 @ v**2).sqrt() + _norm(p) * o.abs()) + least * (finite @ v.abs())
    # The error of the row's sum is common to all weights. It cancels in the output, except with dropout.
    by_s = _weigh_distance(used * ds, v, o) if exact.share is None else (used * (ds + dlse)) @ v.abs()
    sums = (2 + _drift(k)) * ua * (used @ v.abs())
    allowed = {"out": unit * o.abs() + by_p + by_s + sums + tiny}
    if exact.dout is None:
        return allowed
    do, dp, delta, dscores = exact.dout, exact.dweights, exact.delta, exact.dscores
    edp = ua * (1 + _feature_drift(do, v)) * (do.abs() @ v.abs().mT)
    edp = (edp if exact.share is None else edp * exact.share) + us * dp.abs()
    # The error of a weight is common to all features.
    of_weights = (p * ds * (dp - delta).abs() + least * finite * dp.abs()).sum(-1, keepdim=True)
    of_weights = of_weights + uw * (_norm(p * dp) + _norm(p) * delta.abs())
    edelta = _norm(unit * o * do) + _norm(do * sums) + of_weights + us * _norm(p * dp)
    relative = ds + dlse + 2 * ua
    edscores = dscores.abs() * relative + p * (edp + ua * delta.abs()) + flushed * (dp.abs() + delta.abs())
    if "dsinks" in exact.results:
        of_sink = exact.sink * (edelta + delta.abs() * (dlse + (2 + _drift(q)) * ua))
        allowed["dsinks"] = of_sink.sum((0, 2, 3)) + unit * exact.results["dsinks"].abs() + tiny
    allowed["dscores"] = edscores + p * edelta + (us + uw if us else 0.0) * dscores.abs() + tiny
    grad, egrad = dscores * exact.slope, edscores * exact.slope.abs() + 4 * ua * dscores.abs() + least
    shares, scale = p * exact.slope, abs(exact.scale)
    of_scores = uw * (grad**2 @ k**2).sqrt() + (egrad + _drift(k) * ua * grad.abs()) @ k.abs()
    of_scores = of_scores + edelta * (shares @ k).abs()
    allowed["dq"] = unit * exact.results["dq"].abs() + tiny + scale * of_scores
    egrad = egrad + _drift(q) * ua * grad.abs()
    edk = scale * (uw**2 * (grad.mT**2 @ q**2) + (egrad.mT @ q.abs()) ** 2 + (shares.mT**2 @ (edelta * q) ** 2))
    by_head = {"dk": scale * (grad.mT @ q), "dv": used.mT @ do}
    edv = uw**2 * (used.mT**2 @ do**2) + ((used * (relative + _drift(q) * ua) + least).mT @ do.abs()) ** 2
    for name, squares in (("dk", scale * edk), ("dv", edv)):
        # Some kernels round the result of each query head of a group before they add up.
        heads = sum_groups(by_head[name] ** 2, exact.group).sqrt() if exact.group > 1 else 0.0
        rounded = math.sqrt(3) * sum_groups(squares, exact.group).sqrt()
        allowed[name] = unit * (exact.results[name].abs() + heads) + tiny + rounded
        if "sums" in rounds:
            blocks = math.sqrt(q.size(2) / 32)
            allowed[name] = unit * sum_groups(by_head[name].abs(), exact.group) * blocks + allowed[name]
    return allowed


def ill_conditioned(exact: Exact, rounds: tuple[str, ...] = ("weights",)) -> Tensor:
    """A mask of rows, [..., 1], in which the error of a score that matters exceeds `MAX_SCORE_ERROR`."""
    ds = score_error(exact, rounded="scores" in rounds)
    if not ds.size(-1):
        return torch.zeros_like(exact.live)
    lowest = exact.peak - ds.amax(-1, keepdim=True) - constants.NEGLIGIBLE
    return ((exact.scores + ds > lowest) & (ds > constants.MAX_SCORE_ERROR)).any(-1, keepdim=True)


def _norm(terms: Tensor) -> Tensor:
    return terms.square().sum(-1, keepdim=True).sqrt()


def _drift(summed: Tensor) -> float:
    """The number of roundings of a sum over the rows of `summed` that may add up: sums of equal terms round alike."""
    return math.sqrt(summed.size(-2)) / 2


def _feature_drift(x: Tensor, y: Tensor) -> Tensor:
    """`_drift` of x @ y.mT where the terms of a sum are equal because all features of both rows are; 0 elsewhere."""
    equal = [(rows == rows[..., :1]).all(-1, keepdim=True) for rows in (x, y)]
    return _drift(x.mT) * (equal[0] & equal[1].mT)


def _weigh_distance(weights: Tensor, v: Tensor, o: Tensor) -> Tensor:
    """sum_j weights_ij |v_jd - o_id|, a query at a time, so that it takes no more memory than the scores."""
    rows = [(weights[..., i, :, None] * (v - o[..., i, None, :]).abs()).sum(-2) for i in range(weights.size(-2))]
    return torch.stack(rows, -2) if rows else torch.zeros_like(o)
