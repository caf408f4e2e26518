"""Identities between the gradients of one attention that hold whatever the scores are, so that they need no reference.

With P the weights, dS the gradient of the scores and s = scale q . k, for every batch and key head (docs/oracle.md):

    sum_j dK_j = 0                 each row of dS sums to 0        not with softcap or sinks
    sum_j dV_j = sum_i dO_i        each row of P sums to 1         not with sinks or dropout; over rows that keep a key
    sum_j dbias_ij = 0             each row of dS sums to 0        not with sinks
    <dQ, Q> = <dK, K>              both are sum_ij dS_ij s_ij
    <dV, V> = <dO, O>              both are sum_ij P_ij dO_i . V_j: forward and backward dropped the same weights

Float64 only gives the size of the terms that were rounded on the way to each sum. A residual is measured in units of
the root of the sum of their squares, times the roundoff u of the dtype. The terms are the elements that are summed.
Where these cancel (a key that takes all the weight has a gradient of 0 that is all rounding), the terms behind them
count too: weights and dS, which may be rounded to that dtype, delta = dO . O, which may come from a rounded output, and
scores in float32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.error_bound import score_error
from fuzz.check.oracle.attention.exact import Exact, sum_groups
from fuzz.check.oracle.attention.rounding_simulation import sum_in_blocks
from fuzz.check.oracle.constants import UNIT_ROUNDOFF, identity_limit
from fuzz.check.oracle.where import largest_index
from fuzz.protocol.failures import GradientIdentityBroken


def find_violations(made: Call) -> list[GradientIdentityBroken]:
    """Every identity that the gradients of a call break; none without gradients of q, k and v.

    The gradients must be of this call alone. Of dropout only the probability is used.
    """
    given = made.q.numel() and made.k.numel() and made.v.numel() and made.out is not None and made.dout is not None
    if not given or not {"dq", "dk", "dv"} <= made.gradients.keys():
        return []
    limit, broken = identity_limit(made.q.dtype), []
    for equation, residual, squares, sound in _Sums(made).identities():
        # Identities need finite numbers, and 0 in rows without a key.
        blamed = squares.sqrt()
        ratio = (residual.abs() / blamed).where(sound & blamed.isfinite(), torch.nan).nan_to_num(0.0)
        worst = largest_index(ratio)
        if float(ratio[worst]) > limit:
            violation = GradientIdentityBroken(
                equation=equation,
                count=int((ratio > limit).sum()),
                total=ratio.numel(),
                index=worst,
                residual=float(residual[worst]),
                ratio=float(ratio[worst]),
                limit=limit,
            )
            broken.append(violation)
    return broken


class _Sums:
    """The sums of one call by key heads, and for each the square of the rounding error that it may have."""

    def __init__(self, made: Call) -> None:
        assert made.out is not None
        assert made.dout is not None
        self._made, self._group = made, made.group
        self._unit, self._low = UNIT_ROUNDOFF[made.q.dtype], _lowest(made.q.dtype)
        self._ua = UNIT_ROUNDOFF[torch.float32]
        self._out, self._dout = made.out, made.dout
        self._dq, self._dk, self._dv = (made.gradients[name] for name in ("dq", "dk", "dv"))
        self._p = (made.options.get("dropout") or (0.0,))[0]
        given = self._given = Exact(made.replace(dropout=None))
        self._scale, self._weights, error = abs(given.scale), given.weights, score_error(given, rounded=False)
        self._live = (given.weights > 0).any(-1, keepdim=True)
        # Where a row of no key gives the mean of v, other sums hold.
        empty = (~self._live & (self._out != 0).any(-1, keepdim=True)).double()
        tensors = (made.q, made.k, made.v, self._out, self._dout, self._dq, self._dk, self._dv)
        finite = [self._by_key_heads((~x.isfinite()).sum((2, 3)).double()) == 0 for x in tensors]
        #: Whether all numbers of a head are finite and something can be said, bool [batch, kv_heads].
        self._sound = torch.stack([*finite, self._by_key_heads(empty).sum((2, 3)) == 0]).all(0)
        # Dropped weights are not known here: the mean of kept / (1 - p) is 1, that of its square 1 / (1 - p).
        self._more = 1 / (1 - self._p) if self._p < 1 else 1.0
        self._relative = error + (given.weights * error).sum(-1, keepdim=True) + 2 * self._ua
        out, self._do = self._out.double(), self._dout.double()
        dp = self._do @ given.v.mT
        self._dp, self._dp_terms = dp.abs(), self._do.abs() @ given.v.abs().mT
        delta = (self._do * out).sum(-1, keepdim=True)
        exact = (dp - delta).abs()
        self._ds = self._weights * (exact if self._more == 1.0 else self._more**0.5 * self._dp + delta.abs())
        self._delta, self._edelta = delta.abs(), self._of_delta(given.v.abs(), out)

    def identities(self) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """All that hold: the equation, its residuals, the squares of their rounding, where something can be said."""
        made, sound = self._made, self._sound
        no_sinks = made.options.get("sinks") is None
        q, k, v = made.q.double(), made.k.double(), made.v.double()
        dq, dk, dv = self._dq.double(), self._dk.double(), self._dv.double()
        outputs = self._by_key_heads((self._do * self._out.double()).sum((2, 3)))
        scores = self._by_key_heads((dq * q).sum((2, 3))) - (dk * k).sum((2, 3))
        yield "<dQ, Q> = <dK, K>", scores, self._of_scores(), sound
        yield "<dV, V> = <dO, O>", (dv * v).sum((2, 3)) - outputs, self._of_outputs(), sound
        if no_sinks and made.options.get("softcap") is None:
            yield "sum_j dK_j = 0", dk.sum(2), self._of_keys(), sound[..., None]
        if no_sinks and not self._p:
            values = dv.sum(2) - self._by_key_heads((self._do * self._live).sum(2))
            yield "sum_j dV_j = sum_i dO_i", values, self._of_values(), sound[..., None]
        dbias = made.gradients.get("dbias")
        if no_sinks and dbias is not None:
            rows = dbias.double().sum(-1, keepdim=True)
            yield "sum_j dbias_ij = 0", rows, self._of_bias(dbias), sound.all()

    def _by_key_heads(self, value: Tensor) -> Tensor:
        """Sums over the query heads that read one key head, [batch, kv_heads, ...]."""
        return value if value.shape[1] == self._made.k.shape[1] else sum_groups(value, self._group)

    def _of_delta(self, v: Tensor, out: Tensor) -> Tensor:
        """Squares of the error of delta, [batch, heads, seq_len, 1]."""
        p = self._weights
        shared = p * (self._relative * self._more)
        by_weights = self._unit**2 * (self._more * (p**2 @ v**2) + (p**2).sum(-1, keepdim=True) * out**2)
        by_scores = (shared @ v + shared.sum(-1, keepdim=True) * out.abs()) ** 2
        return (self._do**2 * ((self._unit * out) ** 2 + by_weights + by_scores)).sum(-1, keepdim=True)

    def _of_row(self) -> Tensor:
        """Squares of the error of the sum of a row of dS, [batch, heads, seq_len, 1]."""
        p = self._weights
        systematic = self._ds * self._relative + p * self._ua * (self._dp_terms * self._more + self._delta)
        rounded = self._unit**2 * (self._ds**2 + (p * self._delta) ** 2) + self._low**2
        return rounded.sum(-1, keepdim=True) + systematic.sum(-1, keepdim=True) ** 2 + self._edelta

    def _sum_of_rounded(self, value: Tensor, terms: Tensor, unit: float) -> Tensor:
        """Squared rounding of the sum over the axis before the last, of a float32 result rounded to `unit`."""
        others = (self._ua * terms) ** 2 + max(self._low, _lowest(value.dtype)) ** 2
        return unit**2 * _pool_squares(value.double()) + others.sum(-2)

    def _of_keys(self) -> Tensor:
        terms = self._scale * self._by_key_heads(self._ds.mT @ self._given.q.abs())
        rows = self._scale**2 * self._by_key_heads(_pool_squares(self._given.q * self._of_row().sqrt()))
        return self._sum_of_rounded(self._dk, terms, self._unit) + rows

    def _of_values(self) -> Tensor:
        p = self._weights
        terms = self._by_key_heads(p.mT @ self._do.abs())
        rows = (self._unit**2 * p**2 + self._low**2).sum(-1, keepdim=True)
        rows = _pool_squares(self._do * (rows + (p * self._relative).sum(-1, keepdim=True) ** 2).sqrt())
        # Equal weights are rounded alike, so are the gradients they give, and their errors add up.
        low = p.to(self._made.v.dtype).double()
        alike = self._by_key_heads((self._do * (low - p).sum(-1, keepdim=True)).sum(2)) ** 2
        for weights in (p, low):
            rounded = sum_in_blocks(weights, self._do, self._dv.dtype)
            alike += self._by_key_heads((rounded - p.mT @ self._do).sum(2)) ** 2
        return self._sum_of_rounded(self._dv, terms, self._unit) + self._by_key_heads(rows) + alike

    def _of_bias(self, dbias: Tensor) -> Tensor:
        unit = max(self._unit, UNIT_ROUNDOFF.get(dbias.dtype, 0.0))
        rows = self._of_row().sum_to_size(*dbias.shape[:-1], 1)
        terms = self._ds.sum_to_size(dbias.shape)
        return rows + self._sum_of_rounded(dbias.unsqueeze(-1), terms.unsqueeze(-1), unit)

    def _of_scores(self) -> Tensor:
        given = self._given
        ds, p, size = self._ds * given.slope.abs(), self._weights * given.slope.abs(), given.products.abs()
        systematic = ds * ((self._relative + 4 * self._ua) * size + self._ua * given.terms)
        # Where one key takes all the weight dP and delta cancel: what is left of dS is their rounding.
        systematic += p * self._ua * (self._dp_terms * self._more + self._delta) * size
        rounded = self._unit**2 * (ds**2 + (p * self._dp) ** 2 + (p * self._delta) ** 2) * size**2
        rows = systematic.sum(-1, keepdim=True) ** 2 + rounded.sum(-1, keepdim=True)
        rows += self._edelta * (p * size).sum(-1, keepdim=True) ** 2
        queries = self._product(self._dq, self._made.q, self._scale * (ds @ given.k.abs()))
        keys = self._product(self._dk, self._made.k, self._scale * self._by_key_heads(ds.mT @ given.q.abs()))
        return self._by_key_heads(_pool_squares(rows.sqrt()).squeeze(-1) + queries) + keys

    def _of_outputs(self) -> Tensor:
        p = self._weights
        rounded = self._unit**2 * (self._more * (p * self._dp) ** 2 + (p * self._delta) ** 2)
        systematic = self._more * p * (self._dp * self._relative + self._ua * self._dp_terms)
        rows = _pool_squares((rounded.sum(-1, keepdim=True) + systematic.sum(-1, keepdim=True) ** 2).sqrt()).squeeze(-1)
        values = self._product(self._dv, self._made.v, self._by_key_heads(p.mT @ self._do.abs()))
        return self._by_key_heads(rows + self._product(self._out, self._dout, torch.zeros_like(self._do))) + values

    def _product(self, value: Tensor, other: Tensor, terms: Tensor) -> Tensor:
        """Squares of the rounding of a float32 result of `terms` in its product with an input, [batch, heads]."""
        rounding = (self._unit * value.double()) ** 2 + (self._ua * terms) ** 2 + self._low**2
        return _pool_squares((rounding.sqrt() * other.double()).flatten(2).unsqueeze(-1)).squeeze(-1)


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
