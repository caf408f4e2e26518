"""The table of metamorphic relations: how a call of an attention function may be changed, and what must hold then.

Each builder takes a call and chance, and gives an equation between outputs, None where the relation does not apply:
where an option makes places count, an axis is too short, or a changed number would be rounded. In real numbers every
equation holds; `exact` says that it holds bit for bit too where products are summed in one order whatever the shape
(docs/oracle.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fuzz.check.oracle.attention.call import Call

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Equation:
    """What the `changed` call gives is `map` of what `call` gives. `spread` does to its error bound what `map` does to
    numbers; it is `map` where that is linear."""

    changed: Call
    call: Call
    map: Map = lambda out: out
    spread: Map | None = None


@dataclass(frozen=True)
class Relation:
    """A named equation between outputs, built for a call; `exact`: it holds bit for bit."""

    name: str
    exact: bool
    build: Callable[[Call, Random], Equation | None]


def _four_axes(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.dim()) + x.shape)


def _select_options(call: Call, *names: str) -> dict[str, Any]:
    return {name: x for name in names if (x := call.options.get(name)) is not None}


def _select(call: Call, axis: int, chosen: list[int]) -> tuple[Call, Tensor]:
    """The call with the chosen batches (0), query heads with all key heads (1), queries (2) or keys (3); and `chosen`
    as a tensor."""
    index = torch.tensor(chosen, device=call.q.device)
    extras = {name: _four_axes(x) for name, x in _select_options(call, "mask", "bias").items()}
    extras = {name: x if x.shape[axis] == 1 else x.index_select(axis, index) for name, x in extras.items()}
    q, k, v = call.q, call.k, call.v
    if axis < 3:
        q = q.index_select(axis, index)
    if axis in (0, 3):
        k, v = (x.index_select(2 if axis else 0, index) for x in (k, v))
    if axis == 1:
        extras |= {name: x[index] for name, x in _select_options(call, "alibi", "sinks").items()}
    return call.replace(q=q, k=k, v=v, **extras), index


def _keep(call: Call, keys: Tensor) -> Call:
    """The call with a mask that keeps no keys but these."""
    mask = call.options.get("mask")
    return call.replace(mask=_four_axes(keys if mask is None else mask & keys))


def _head_permutation(call: Call, chance: Random) -> Equation | None:
    if call.q.shape[1] < 2:
        return None
    kv_heads = chance.sample(range(call.k.shape[1]), call.k.shape[1])
    chosen = [g * call.group + m for g in kv_heads for m in chance.sample(range(call.group), call.group)]
    changed, index = _select(call, 1, chosen)
    keys = torch.tensor(kv_heads, device=call.q.device)
    changed = changed.replace(k=call.k.index_select(1, keys), v=call.v.index_select(1, keys))
    return Equation(changed, call, lambda out: out.index_select(1, index))


def _batch_slice(call: Call, chance: Random) -> Equation | None:
    if call.q.shape[0] < 2:
        return None
    changed, index = _select(call, 0, [chance.randrange(call.q.shape[0])])
    return Equation(changed, call, lambda out: out.index_select(0, index))


def _query_slice(call: Call, chance: Random) -> Equation | None:
    rows = call.q.shape[2]
    if rows < 2:
        return None
    first, stop = sorted(chance.sample(range(rows + 1), 2))
    if call.has_places:
        cut = chance.randint(1, rows - 1)
        first, stop = (cut, rows) if call.from_end else (0, cut)
    changed, index = _select(call, 2, list(range(first, stop)))
    return Equation(changed, call, lambda out: out.index_select(2, index))


def _additive_mask(call: Call, _: Random) -> Equation | None:
    mask, bias = call.options.get("mask"), call.options.get("bias")
    if mask is None:
        return None
    bias = call.q.new_zeros(()) if bias is None else bias
    return Equation(call.replace(mask=None, bias=torch.where(mask, bias, float("-inf")).to(bias.dtype)), call)


def _band_as_mask(call: Call, _: Random) -> Equation | None:
    mask = call.combine_masks() if _select_options(call, "causal", "window") else None
    if call.options.get("alibi") is not None and call.from_end:
        return None
    return None if mask is None else Equation(call.replace(causal=None, window=None, mask=mask), call)


def _alibi_as_bias(call: Call, _: Random) -> Equation | None:
    sloped = None if call.options.get("alibi") is None else call.combine_biases()
    return None if sloped is None else Equation(call.replace(alibi=None, bias=sloped.float()), call)


def _whole_extras(call: Call, _: Random) -> Equation | None:
    shape = (*call.q.shape[:3], call.k.shape[2])
    narrow = {name: x for name, x in _select_options(call, "mask", "bias").items() if x.shape != shape}
    whole = {name: x.expand(shape).contiguous() for name, x in narrow.items()}
    return Equation(call.replace(**whole), call) if whole else None


def _stays(x: Tensor, factor: float) -> bool:
    """Whether a tensor times a power of two has no rounding, no overflow and no number smaller than the normal ones."""
    y, limits = x.double() * factor, torch.finfo(x.dtype)
    least = limits.smallest_normal if x.dtype != torch.float16 else 0.0
    return bool(((x * factor).double() == y).all() and ((y == 0) | (y.abs() >= least)).all())


def _q_against_scale(call: Call, chance: Random) -> Equation | None:
    factor = 4.0 ** chance.randint(1, 2)  # with an exact root: the scale may be split between q and k
    dots = factor * call.q.double().abs().max() * call.k.double().abs().max() * call.q.shape[3]
    # Products in float16 may overflow without a fault.
    if not _stays(call.q, factor) or dots > torch.finfo(call.q.dtype).max / 2:
        return None
    return Equation(call.replace(q=call.q * factor, scale=call.options["scale"] / factor), call)


def _repeat_heads(call: Call, _: Random) -> Equation | None:
    k, v = (x.repeat_interleave(call.group, 1) for x in (call.k, call.v))
    return Equation(call.replace(k=k, v=v), call) if call.group > 1 else None


def _pad_features(call: Call, chance: Random) -> Equation | None:
    more = chance.choice((1, 3, 8, 16))
    q, k, v = (pad(x, (0, more)) for x in (call.q, call.k, call.v))
    if call.v.shape[3] != call.q.shape[3]:
        return Equation(call.replace(q=q, k=k), call)
    return Equation(call.replace(q=q, k=k, v=v), call, lambda out: pad(out, (0, more)))


def _key_permutation(call: Call, chance: Random) -> Equation | None:
    columns = call.k.shape[2]
    if call.has_places or columns < 2:
        return None
    return Equation(_select(call, 3, chance.sample(range(columns), columns))[0], call)


def _remove_keys(call: Call, chance: Random) -> Equation | None:
    columns = call.k.shape[2]
    if call.from_end or columns < 2:
        return None
    count = chance.randint(1, columns - 1)
    chosen = list(range(count)) if call.has_places else sorted(chance.sample(range(columns), count))
    removed, index = _select(call, 3, chosen)
    keep = torch.zeros(columns, dtype=torch.bool, device=call.q.device)
    keep[index] = True
    return Equation(removed, _keep(call, keep))


def _pad_tail(call: Call, chance: Random) -> Equation | None:
    columns, more = call.k.shape[2], chance.choice((1, 5, 64))
    if call.from_end:
        return None
    padded, _index = _select(call, 3, [*range(columns), *(chance.randrange(columns) for _ in range(more))])
    v = padded.v.clone()
    v[:, :, columns:] = 1000.0
    keep = torch.arange(columns + more, device=call.q.device) < columns
    return Equation(_keep(padded.replace(v=v), keep), call)


def _causal_prefix(call: Call, chance: Random) -> Equation | None:
    rows, columns = call.q.shape[2], call.k.shape[2]
    if call.options.get("causal") is None or min(rows, columns) < 2:
        return None
    last = chance.randint(1, min(rows, columns) - 1)
    kept = (rows - last, columns - last) if call.from_end else (last, last)
    queries, index = _select(call, 2, list(range(kept[0])))
    changed, _index = _select(queries, 3, list(range(kept[1])))
    return Equation(changed, call, lambda out: out.index_select(2, index))


def _permute_features(call: Call, chance: Random) -> Equation | None:
    width = call.q.shape[3]
    order = torch.tensor(chance.sample(range(width), width), device=call.q.device)
    signs = torch.tensor([chance.choice((1.0, -1.0)) for _ in range(width)], device=call.q.device).to(call.q.dtype)
    q, k = (x.index_select(3, order) * signs for x in (call.q, call.k))
    return Equation(call.replace(q=q, k=k), call)


def _sinks_as_key(call: Call, _: Random) -> Equation | None:
    sinks = call.options.get("sinks")
    if sinks is None or call.has_places:
        return None
    mask, bias = call.options.get("mask"), call.options.get("bias")
    shape = (*call.q.shape[:3], call.k.shape[2])
    whole = torch.zeros(shape, device=call.q.device) if bias is None else bias.float().expand(shape)
    column = sinks.float()[:, None, None].expand(*shape[:3], 1)
    if mask is not None:
        mask = pad(mask.expand(shape), (0, 1), value=True)
    k, v = (pad(x, (0, 0, 0, 1)) for x in (call.k, call.v))
    return Equation(call.replace(k=k, v=v, mask=mask, bias=torch.cat([whole, column], -1), sinks=None), call)


def _between_values(call: Call, _: Random) -> Equation | None:
    low, high = (
        x.repeat_interleave(call.group, 1) for x in (call.v.amin(2, keepdim=True), call.v.amax(2, keepdim=True))
    )
    if call.options.get("sinks") is not None:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    return Equation(call, call, lambda out: out.clamp(low, high), lambda bound: bound)


def _negate_scale(call: Call, _: Random) -> Equation | None:
    return Equation(call.replace(q=-call.q, scale=-call.options["scale"]), call)


def _negate_values(call: Call, _: Random) -> Equation | None:
    return Equation(call.replace(v=-call.v), call, torch.neg, torch.abs)


def _values_of_one(call: Call, _: Random) -> Equation | None:
    ones = call.replace(v=torch.ones_like(call.v))
    return Equation(ones, ones, torch.ones_like, torch.zeros_like) if call.options.get("sinks") is None else None


RELATIONS = (
    Relation("heads permuted", True, _head_permutation),
    Relation("a bias of -inf for the mask", False, _additive_mask),
    Relation("a mask for causal and window", True, _band_as_mask),
    Relation("mask and bias expanded", True, _whole_extras),
    Relation("q * 4^n and scale / 4^n", True, _q_against_scale),
    Relation("-q and -scale", True, _negate_scale),
    Relation("-v", True, _negate_values),
    Relation("keys repeated for each query head", True, _repeat_heads),
    Relation("one batch alone", False, _batch_slice),
    Relation("a bias for ALiBi", False, _alibi_as_bias),
    Relation("some queries alone", False, _query_slice),
    Relation("features of 0 appended", False, _pad_features),
    Relation("keys permuted", False, _key_permutation),
    Relation("keys masked or removed", False, _remove_keys),
    Relation("masked keys appended", False, _pad_tail),
    Relation("queries and keys cut off under causality", False, _causal_prefix),
    Relation("features of q and k turned alike", False, _permute_features),
    Relation("sinks as one more key", False, _sinks_as_key),
    Relation("v = 1 gives 1", False, _values_of_one),
    Relation("between the smallest and the largest v", False, _between_values),
)
