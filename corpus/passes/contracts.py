"""Simpler attention, for failures that depend on the contract alone: spelled plainly, an option fewer at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from corpus.passes.plain_attention import Plain, read_contract, spell
from generators.program.attention_options import OPTIONS, OVER_SCORES, PER_HEAD
from generators.program.case import Case, Input
from generators.program.edits import input_like
from generators.program.sizes import Size
from generators.program.type_check import types_of


def simplify_contract(case: Case) -> Iterator[Case]:
    """The attention of a contract in place of the whole case: bare, as it is, and with an option fewer or simpler.

    The rest of the case is dropped, so the values that it computes change.
    """
    types = types_of(case)
    for contract in case.contracts:
        as_given = read_contract(case, contract, types)
        contiguous = as_given.map_inputs(lambda item: replace(item, layout="contiguous"), ("q", "k", "v"))
        for plain in (_make_bare(contiguous), contiguous, as_given, *_drop_one(as_given), *_simplify_one(as_given)):
            yield from filter(None, [spell(_with_plain_name(plain))])


def _make_bare(plain: Plain) -> Plain:
    without: dict[str, Any] = {name: option.absent for name, option in OPTIONS.items()}
    bare = replace(plain, **without, scale=plain.least_scale)
    return _with_heads(_with_value_dim(bare), bare.k.shape[1], bare.k.shape[1])


def _drop_one(plain: Plain) -> Iterator[Plain]:
    for name, option in OPTIONS.items():
        fewer: dict[str, Any] = {name: option.absent}
        if name == "causal" and plain.window is not None:
            # A window without keys to the right would be as causal as before.
            fewer["window"] = (plain.window[0], -1)
        if getattr(plain, name) != option.absent:
            yield replace(plain, **fewer)
    sizes, one = dict(plain.dims), Size.of(1)
    heads, kv_heads = plain.q.shape[1], plain.k.shape[1]
    if heads.value(sizes) != 1:
        yield _with_heads(plain, one, one)
    if heads.value(sizes) != kv_heads.value(sizes):
        yield _with_heads(plain, kv_heads, kv_heads)
        if kv_heads.value(sizes) != 1:
            yield _with_heads(plain, heads, one)
    if plain.v.shape[-1] != plain.q.shape[-1]:
        yield _with_value_dim(plain)


def _simplify_one(plain: Plain) -> Iterator[Plain]:
    scales = (plain.least_scale, 0.5 if abs(plain.scale) < 1 else 2.0, -1.0)
    for scale in scales if plain.scale < 0 else scales[:2]:
        if scale != plain.scale:
            yield replace(plain, scale=scale)
    if plain.softcap not in (None, 1.0):
        yield replace(plain, softcap=1.0)
    if plain.causal == "bottom_right":
        yield replace(plain, causal="top_left")
    if plain.window is not None:
        left, right = plain.window
        sides = [(side, right) for side in _sides(left)]
        sides += [(left, side) for side in _sides(right)] if plain.causal is None else []
        for window in sides:
            if window != (-1, -1):
                yield replace(plain, window=window)
    if plain.mask is not None and not plain.fused:
        drop = input_like(plain.mask.name, plain.mask.type, 0)
        yield replace(plain, mask=drop, keeps=False)
    # The dtype of q needs no cast back.
    alike = plain.map_inputs(lambda item: replace(item, dtype=plain.q.dtype), ("bias", "alibi", "sinks"))
    if alike != plain:
        yield alike
    if plain.dropout not in (0.0, 0.5):
        yield replace(plain, dropout=0.5)


def _sides(side: int) -> Iterator[int]:
    """Simpler bounds on one side, no bound first."""
    if side >= 0:
        yield -1
        yield from (s for s in dict.fromkeys((0, 1, side // 2)) if s < side)


def _with_value_dim(plain: Plain) -> Plain:
    return replace(plain, v=replace(plain.v, shape=(*plain.v.shape[:-1], plain.q.shape[-1])))


def _with_plain_name(plain: Plain) -> Plain:
    """The dimension H in place of a product, for query heads that share a single key head: equal cases read alike."""
    sizes, heads = dict(plain.dims), plain.q.shape[1]
    if heads.is_name or "H" in sizes or not 1 == plain.k.shape[1].value(sizes) < heads.value(sizes):
        return plain
    named = replace(plain, dims=(*plain.dims, ("H", heads.value(sizes))))
    return _with_heads(named, Size.of("H"), Size.of(1))


def _with_heads(plain: Plain, heads: Size, kv_heads: Size) -> Plain:
    sizes = dict(plain.dims)

    def on_axis(axis: int, size: Size) -> Callable[[Input], Input]:
        def change(item: Input) -> Input:
            if len(item.shape) < -axis or item.shape[axis].value(sizes) == 1:
                return item
            shape = list(item.shape)
            shape[axis] = size
            return replace(item, shape=tuple(shape))

        return change

    plain = plain.map_inputs(on_axis(-3, heads), ("q", *OVER_SCORES))
    plain = plain.map_inputs(on_axis(-3, kv_heads), ("k", "v"))
    return plain.map_inputs(on_axis(-1, heads), PER_HEAD)
