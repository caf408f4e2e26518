"""How far rounding may take an attention kernel from float64, to first order, for every element of its results.

With s the scores, P = softmax(s), o = P v, dP = do v^T, delta = sum_d o do, dS = P (dP - delta), everything in float64, and
ua the unit roundoff of float32 (the accumulators), uw that of what P and dS are rounded to, u that of the results:

    ds    = ua (|scale| sum_d |q||k| + 2|s| + (max s - s) + |bias|)           absolute error of a score
    o     : u|o| + uw (sqrt(sum_j P^2 v^2) + |P|_2 |o|) + sum_j P (ds + 2 ua) |v - o|
    delta : u sqrt(sum_d (o do)^2) + sqrt(sum_d (do T_o)^2)                   T_o: the budget of o without u|o|
    dv    : u|dv| + uw sqrt(sum_i P^2 do^2) + sum_i P (ds + dlse + 2 ua)|do|
    dS    : |dS|(ds + dlse + 2 ua) + P ua sum_d |do||v|, and uw |dS| at random
    dq, dk: u|dq| + |scale| (uw sqrt(sum dS^2 k^2) + sum e(dS)|k| + e(delta)|sum_j P k|)

Rounding errors of one sign add up, others go as the root of their squares. The forward formula is that of the project's
notes on numerics; those of the gradients are derived from the backward pass in the same way.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.check.oracle.constants import UNIT_ROUNDOFF
from fuzz.check.oracle.scores import scores


@dataclass(frozen=True)
class Budget:
    """The exact results in float64 and the budget of each element, by name: out, dq, dk, dv and, with a bias, dscores."""

    exact: dict[str, Tensor]
    allowed: dict[str, Tensor]

    def ratio(self, name: str, value: Tensor) -> Tensor:
        """Error of each element over its budget, signed: positive where `value` is larger in magnitude."""
        exact = self.exact[name]
        return (value.double() - exact) * exact.sign() / self.allowed[name]

    def worst(self, name: str, value: Tensor) -> float:
        """The largest magnitude of `ratio`; infinite where `value` is not finite. 0 for no elements."""
        if not value.numel():
            return 0.0
        return float((value.double() - self.exact[name]).abs().div(self.allowed[name]).nan_to_num(math.inf).max())


def budget(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None = None,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    kept: Tensor | None = None,
    dropout_p: float = 0.0,
    round_weights: bool = True,
    round_scores: bool = False,
) -> Budget:
    """The budget of attention over q [batch, heads, seq_len, head_dim], k and v [batch, kv_heads, kv_len, ...] of one dtype.

    `bias` (float) and `mask` (bool, True keeps) broadcast to the scores; ALiBi goes into `bias`, causality and windows into
    `mask`. `kept` is the dropout mask, [batch, heads, seq_len, kv_len]. Without `dout` only `out` is budgeted.
    `round_weights`, `round_scores`: whether weights, and scores, may be rounded to the inputs' dtype on their way.
    """
    unit, ua = UNIT_ROUNDOFF[q.dtype], UNIT_ROUNDOFF[torch.float32]
    uw = unit if round_weights else ua
    tiny = torch.finfo(q.dtype).smallest_normal
    group = q.size(1) // max(1, k.size(1))
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    given = scores(
        q, k, scale=scale, mask=mask, bias=bias, softcap=softcap, sinks=sinks, unit=unit if round_scores else 0.0
    )
    p, slope, ds = given.weights, given.slope, given.error
    dlse = (p * ds).sum(-1, keepdim=True)
    used = p if kept is None else p * kept / (1 - dropout_p)
    o = used @ v
    by_p = uw * ((used**2 @ v**2).sqrt() + p.square().sum(-1, keepdim=True).sqrt() * o.abs())
    by_s = _weighted_distance(used * (ds + 2 * ua), v, o)
    exact, allowed = {"out": o}, {"out": unit * o.abs() + by_p + by_s + tiny}
    if dout is None:
        return Budget(exact, allowed)
    do = dout.double()
    dp = do @ v.mT
    edp = ua * (do.abs() @ v.abs().mT)
    if kept is not None:
        dp, edp = (x * kept / (1 - dropout_p) for x in (dp, edp))
    delta = (o * do).sum(-1, keepdim=True)
    edelta = ((unit * o * do) ** 2).sum(-1, keepdim=True).sqrt() + ((do * (by_p + by_s)) ** 2).sum(-1, keepdim=True).sqrt()
    dscores = p * (dp - delta)
    relative = ds + dlse + 2 * ua
    edscores = dscores.abs() * relative + p * (edp + ua * delta.abs())
    exact["dscores"], allowed["dscores"] = dscores, edscores + p * edelta + tiny
    grad, egrad = dscores * slope, edscores * slope.abs() + 4 * ua * dscores.abs()
    shares = p * slope
    exact["dq"] = scale * (grad @ k)
    allowed["dq"] = unit * exact["dq"].abs() + tiny + abs(scale) * (
        uw * (grad**2 @ k**2).sqrt() + egrad @ k.abs() + edelta * (shares @ k).abs()
    )
    dk = scale * (grad.mT @ q)
    edk = abs(scale) * (
        uw**2 * (grad.mT**2 @ q**2) + (egrad.mT @ q.abs()) ** 2 + (shares.mT**2 @ (edelta * q) ** 2)
    )
    dv = used.mT @ do
    edv = uw**2 * (used.mT**2 @ do**2) + ((used * relative).mT @ do.abs()) ** 2
    for name, value, squares in (("dk", dk, abs(scale) * edk), ("dv", dv, edv)):
        exact[name] = _grouped(value, group)
        allowed[name] = unit * exact[name].abs() + tiny + math.sqrt(3) * _grouped(squares, group).sqrt()
    return Budget(exact, allowed)


def _weighted_distance(weights: Tensor, v: Tensor, o: Tensor) -> Tensor:
    """sum_j weights_ij |v_jd - o_id|, a query at a time so that memory stays that of the scores."""
    rows = [
        (weights[..., i, :, None] * (v - o[..., i, None, :]).abs()).sum(-2) for i in range(weights.size(-2))
    ]
    return torch.stack(rows, -2) if rows else torch.zeros_like(o)


def _grouped(value: Tensor, group: int) -> Tensor:
    """Sum over the query heads of each group: [batch, kv_heads, ...]."""
    return value.unflatten(1, (-1, group)).sum(2) if group > 1 else value
