"""The table of metamorphic relations: how a call of an attention function may be changed, and what must hold then.

Each builder takes a call and chance, and gives an equation between outputs, None where the relation does not apply:
where an option makes places count, or an axis is too short. In real numbers every equation holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fuzz.check.oracle.attention.call import Call


@dataclass(frozen=True, eq=False)
class Equation:
    """What the `changed` call gives is `map` of what `call` gives, which only moves elements and appends 0."""

    changed: Call
    call: Call
    map: Callable[[Tensor], Tensor] = lambda out: out


def _four_axes(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.dim()) + x.shape)


def _select_options(call: Call, *names: str) -> dict[str, Any]:
    return {name: x for name in names if (x := call.options.get(name)) is not None}


def _select(call: Call, axis: int, chosen: list[int]) -> tuple[Call, Tensor]:
    """The call with the chosen queries (axis 2) or keys (3); and `chosen` as a tensor."""
    index = torch.tensor(chosen, device=call.q.device)
    extras = {name: _four_axes(x) for name, x in _select_options(call, "mask", "bias").items()}
    extras = {name: x if x.shape[axis] == 1 else x.index_select(axis, index) for name, x in extras.items()}
    names = ("q",) if axis == 2 else ("k", "v")
    return call.replace(**{name: getattr(call, name).index_select(2, index) for name in names}, **extras), index


def _keep(call: Call, keys: Tensor) -> Call:
    """The call with a mask that keeps no keys but these."""
    mask = call.options.get("mask")
    return call.replace(mask=_four_axes(keys if mask is None else mask & keys))


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


def _negate_scale(call: Call, _: Random) -> Equation | None:
    return Equation(call.replace(q=-call.q, scale=-call.options["scale"]), call)


RELATIONS: dict[str, Callable[[Call, Random], Equation | None]] = {
    "a bias of -inf for the mask": _additive_mask,
    "a mask for causal and window": _band_as_mask,
    "mask and bias expanded": _whole_extras,
    "-q and -scale": _negate_scale,
    "a bias for ALiBi": _alibi_as_bias,
    "some queries alone": _query_slice,
    "features of 0 appended": _pad_features,
    "keys permuted": _key_permutation,
    "keys masked or removed": _remove_keys,
    "masked keys appended": _pad_tail,
    "queries and keys cut off under causality": _causal_prefix,
    "features of q and k turned alike": _permute_features,
}
"""By name, what builds the equation for a call."""
