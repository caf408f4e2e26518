"""Identities between the gradients of one attention that hold whatever the scores are, so that they need no reference.

With P the weights, dS the gradient of the scores and s = scale q . k, for every batch and key head (docs/oracle.md):

    sum_j dK_j = 0                 each row of dS sums to 0        not with softcap or sinks
    sum_j dV_j = sum_i dO_i        each row of P sums to 1         not with sinks or dropout; over rows that keep a key
    sum_j dbias_ij = 0             each row of dS sums to 0        not with sinks
    <dQ, Q> = <dK, K>              both are sum_ij dS_ij s_ij
    <dV, V> = <dO, O>              both are sum_ij P_ij dO_i . V_j: forward and backward dropped the same weights

Float64 is used for one thing: how large the terms are that were rounded on the way to each sum. A sum of squares of
them, in units of the roundoff u of the dtype, is what a residual is measured by. The terms are the elements that are
summed, and behind them, where they cancel (one key that takes all the weight has a gradient of 0 that is all rounding):
weights and dS, which may be rounded to that dtype, delta = dO . O, which may be taken from a rounded output, and scores
in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import score_error
from fuzz.check.oracle.attention.exact import Exact
from fuzz.check.oracle.constants import UNIT_ROUNDOFF, identity_limit
from fuzz.check.oracle.where import largest_index
from fuzz.protocol.failures import GradientIdentityBroken


@dataclass(frozen=True)
class Identity:
    """One identity of a call: `residual` of each sum over what rounding explains, `ratio`, of one shape.

    `sums` names the identity; a ratio is NaN where nothing can be said: what is not finite, or a row of no key that is
    not 0.
    """

    sums: str
    residual: Tensor
    ratio: Tensor

    @property
    def worst(self) -> float:
        """The largest ratio, 0 where nothing can be said."""
        return float(self.ratio.nan_to_num(0.0).max()) if self.ratio.numel() else 0.0

    def failure(self, limit: float) -> GradientIdentityBroken:
        """What is broken and where."""
        known = self.ratio.nan_to_num(0.0)
        worst = largest_index(known)
        return GradientIdentityBroken(
            equation=self.sums,
            count=int((known > limit).sum()),
            total=known.numel(),
            index=worst,
            residual=float(self.residual[worst]),
            ratio=self.worst,
            limit=limit,
        )


def find_violations(call: Call) -> list[GradientIdentityBroken]:
    """Every identity that a call with its gradients breaks."""
    limit = identity_limit(call.q.dtype)
    return [one.failure(limit) for one in identities(call) if one.worst > limit]


def identities(made: Call) -> list[Identity]:
    """All that hold for a call of an attention function with its gradients, which are of this call alone. Of dropout
    only the probability is looked at. None without gradients of q, k and v."""
    if not (made.q.numel() and made.k.numel() and made.v.numel()) or made.out is None or made.dout is None:
        return []
    if not {"dq", "dk", "dv"} <= made.gradients.keys():
        return []
    dq, dk, dv, dbias = (made.gradients.get(name) for name in ("dq", "dk", "dv", "dbias"))
    assert dq is not None
    assert dk is not None
    assert dv is not None
    q, k, v, out, dout = made.q, made.k, made.v, made.out, made.dout
    softcap, sinks, dropout = (made.options.get(name) for name in ("softcap", "sinks", "dropout"))
    call = _Call(q, k, v, out, dout, dq, dk, dv)
    sizes = _Sizes(call, Exact.of(made.but(dropout=None)), dropout[0] if dropout else 0.0)
    found = [
        call.measure(
            "<dQ, Q> = <dK, K>", call.per_head(dq, q) - (dk.double() * k.double()).sum((2, 3)), sizes.of_scores()
        ),
        call.measure(
            "<dV, V> = <dO, O>", (dv.double() * v.double()).sum((2, 3)) - call.per_head(dout, out), sizes.of_outputs()
        ),
    ]
    if softcap is None and sinks is None:
        found.append(call.measure("sum_j dK_j = 0", dk.double().sum(2), sizes.of_keys()))
    if sinks is None and not (dropout and dropout[0]):
        live = dout.double() * sizes.live
        found.append(
            call.measure(
                "sum_j dV_j = sum_i dO_i", dv.double().sum(2) - call.sum_groups(live.sum(2)), sizes.of_values()
            )
        )
    if dbias is not None and sinks is None:
        rows = dbias.double().sum(-1, keepdim=True)
        unit = max(call.unit, UNIT_ROUNDOFF.get(dbias.dtype, 0.0))
        blamed = sizes.of_bias(dbias, unit).sqrt()
        found.append(Identity("sum_j dbias_ij = 0", rows, _ratio(rows, blamed, call.sound.all())))
    return found


class _Call:
    """The tensors of a call, and how they are taken apart by key heads."""

    def __init__(self, *tensors: Tensor) -> None:
        self.q, self.k, self.v, self.out, self.dout, self.dq, self.dk, self.dv = tensors
        self.unit = UNIT_ROUNDOFF[self.q.dtype]
        self.low = _lowest(self.q.dtype)
        self.kv_heads = self.k.shape[1]
        self.group = self.q.shape[1] // self.kv_heads
        finite = [self.sum_groups((~x.isfinite()).sum((2, 3)).double()) == 0 for x in tensors]
        #: Whether all numbers of a head are finite, bool [batch, kv_heads].
        self.sound = torch.stack(finite).all(0)

    def sum_groups(self, value: Tensor) -> Tensor:
        """Sums over the query heads that read one key head, [batch, kv_heads, ...]."""
        if value.shape[1] == self.kv_heads:
            return value
        return value.unflatten(1, (self.kv_heads, self.group)).sum(2)

    def per_head(self, left: Tensor, right: Tensor) -> Tensor:
        """The product of two tensors of queries, [batch, kv_heads]."""
        return self.sum_groups((left.double() * right.double()).sum((2, 3)))

    def measure(self, sums: str, residual: Tensor, squares: Tensor) -> Identity:
        """An identity of residuals [batch, kv_heads, ...] and the squares of their rounding."""
        sound = self.sound.view(*self.sound.shape, *[1] * (residual.dim() - 2))
        return Identity(sums, residual, _ratio(residual, squares.sqrt(), sound))


class _Sizes:
    """The squares of what rounding may leave of each sum."""

    def __init__(self, call: _Call, given: Exact, p: float) -> None:
        self.call = call
        v = given.v
        self.q, self.dout, out = given.q, call.dout.double(), call.out.double()
        self.scale = abs(given.scale)
        self.ua, self.uw = UNIT_ROUNDOFF[torch.float32], call.unit
        self.given, self.weights, error = given, given.weights, score_error(given, rounded=False)
        self.live = (given.weights > 0).any(-1, keepdim=True)
        # Where a row of no key gives the mean of v, other sums hold.
        empty = ~self.live & (out != 0).any(-1, keepdim=True)
        call.sound &= call.sum_groups(empty.double()).sum((2, 3)) == 0
        # Dropped weights are not known here: the mean of kept / (1 - p) is 1, that of its square 1 / (1 - p).
        self.more = 1 / (1 - p) if p < 1 else 1.0
        self.relative = error + (given.weights * error).sum(-1, keepdim=True) + 2 * self.ua
        self.dp = (self.dout @ v.mT).abs()
        self.dp_terms = self.dout.abs() @ v.abs().mT
        delta = (self.dout * out).sum(-1, keepdim=True)
        exact = (self.dout @ v.mT - delta).abs()
        self.ds = self.weights * (exact if self.more == 1.0 else self.more**0.5 * self.dp + delta.abs())
        self.delta, self.edelta = delta.abs(), self._of_delta(v.abs(), out)

    def _of_delta(self, v: Tensor, out: Tensor) -> Tensor:
        """Squares of the error of delta, [batch, heads, seq_len, 1]."""
        p = self.weights
        shared = p * (self.relative * self.more)
        by_weights = self.uw**2 * (self.more * (p**2 @ v**2) + (p**2).sum(-1, keepdim=True) * out**2)
        by_scores = (shared @ v + shared.sum(-1, keepdim=True) * out.abs()) ** 2
        return (self.dout**2 * ((self.call.unit * out) ** 2 + by_weights + by_scores)).sum(-1, keepdim=True)

    def _of_row(self) -> Tensor:
        """Squares of the error of the sum of a row of dS, [batch, heads, seq_len, 1]."""
        p = self.weights
        systematic = self.ds * self.relative + p * self.ua * (self.dp_terms * self.more + self.delta)
        rounded = self.uw**2 * (self.ds**2 + (p * self.delta) ** 2) + self.call.low**2
        return rounded.sum(-1, keepdim=True) + systematic.sum(-1, keepdim=True) ** 2 + self.edelta

    def _sum_of_rounded(self, value: Tensor, terms: Tensor, unit: float) -> Tensor:
        """Squared rounding of the sum over the axis before the last, of a float32 result rounded to `unit`."""
        others = (self.ua * terms) ** 2 + max(self.call.low, _lowest(value.dtype)) ** 2
        return unit**2 * _pool_squares(value.double()) + others.sum(-2)

    def _rounded(self, value: Tensor, terms: Tensor) -> Tensor:
        """Squares of the rounding of a float32 result with these magnitudes of terms to the dtype of the call."""
        return (self.call.unit * value) ** 2 + (self.ua * terms) ** 2 + self.call.low**2

    def of_keys(self) -> Tensor:
        """Of sum_j dK_j, [batch, kv_heads, head_dim]."""
        call = self.call
        terms = self.scale * call.sum_groups(self.ds.mT @ self.q.abs())
        rows = self.scale**2 * call.sum_groups(_pool_squares(self.q * self._of_row().sqrt()))
        return self._sum_of_rounded(call.dk, terms, call.unit) + rows

    def of_values(self) -> Tensor:
        """Of sum_j dV_j - sum_i dO_i, [batch, kv_heads, value_dim]."""
        call, p = self.call, self.weights
        terms = call.sum_groups(p.mT @ self.dout.abs())
        rows = (self.uw**2 * p**2 + call.low**2).sum(-1, keepdim=True) + (p * self.relative).sum(-1, keepdim=True) ** 2
        rows = _pool_squares(self.dout * rows.sqrt())
        # Equal weights are rounded alike, and their errors add up.
        off = (p.to(call.v.dtype).double() - p).sum(-1, keepdim=True)
        alike = call.sum_groups((self.dout * off).sum(2)) ** 2
        return self._sum_of_rounded(call.dv, terms, call.unit) + call.sum_groups(rows) + alike

    def of_bias(self, dbias: Tensor, unit: float) -> Tensor:
        """Of the sums of the rows of `dbias`, in its shape with one column."""
        rows = self._of_row().sum_to_size(*dbias.shape[:-1], 1)
        terms = self.ds.sum_to_size(dbias.shape)
        return rows + self._sum_of_rounded(dbias.unsqueeze(-1), terms.unsqueeze(-1), unit)

    def of_scores(self) -> Tensor:
        """Of <dQ, Q> - <dK, K>, [batch, kv_heads]."""
        call, given = self.call, self.given
        ds = self.ds * given.slope.abs()
        systematic = ds * ((self.relative + 4 * self.ua) * given.products.abs() + self.ua * given.terms)
        rows = systematic.sum(-1, keepdim=True) ** 2 + (self.uw**2 * (ds * given.products) ** 2).sum(-1, keepdim=True)
        queries = self._product(call.dq, call.q, self.scale * (ds @ self._keys().abs()))
        keys = self._product(call.dk, call.k, self.scale * call.sum_groups(ds.mT @ self.q.abs()))
        return call.sum_groups(_pool_squares(rows.sqrt()).squeeze(-1) + queries) + keys

    def of_outputs(self) -> Tensor:
        """Of <dV, V> - <dO, O>, [batch, kv_heads]."""
        call, p = self.call, self.weights
        rounded = self.uw**2 * (self.more * (p * self.dp) ** 2 + (p * self.delta) ** 2)
        systematic = self.more * p * (self.dp * self.relative + self.ua * self.dp_terms)
        rows = _pool_squares((rounded.sum(-1, keepdim=True) + systematic.sum(-1, keepdim=True) ** 2).sqrt()).squeeze(-1)
        values = self._product(call.dv, call.v, call.sum_groups(p.mT @ self.dout.abs()))
        return call.sum_groups(rows + self._product(call.out, call.dout, torch.zeros_like(self.dout))) + values

    def _product(self, value: Tensor, other: Tensor, terms: Tensor) -> Tensor:
        """Squares of the rounding of a result in its product with an input, [batch, heads of both]."""
        errors = self._rounded(value.double(), terms).sqrt() * other.double()
        return _pool_squares(errors.flatten(2).unsqueeze(-1)).squeeze(-1)

    def _keys(self) -> Tensor:
        return self.call.k.double().repeat_interleave(self.call.group, 1)


def _lowest(dtype: torch.dtype) -> float:
    """The absolute rounding error of the smallest numbers: half a subnormal step in float16, else what is flushed."""
    tiny = torch.finfo(dtype).smallest_normal
    return tiny * UNIT_ROUNDOFF[dtype] if dtype == torch.float16 else tiny


def _pool_squares(errors: Tensor) -> Tensor:
    """The sum of squares over the axis before the last, equal numbers added up first since they round alike."""
    ordered = errors.float().sort(-2).values
    new = torch.zeros_like(ordered, dtype=torch.int64)
    new[..., 1:, :] = ordered.diff(dim=-2) != 0
    return torch.zeros_like(errors).scatter_add(-2, new.cumsum(-2), ordered.double()).square().sum(-2)


def _ratio(residual: Tensor, blamed: Tensor, sound: Tensor) -> Tensor:
    return (residual.abs() / blamed).where(sound & blamed.isfinite(), torch.nan)
