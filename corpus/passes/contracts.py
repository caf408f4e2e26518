"""Simpler attention, for failures that depend on the contract alone: spelled plainly, an option fewer at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from corpus.passes.plain_attention import Plain, read_contract, spell
from generators.program.attention_options import OPTIONS, OVER_SCORES, PER_HEAD, TENSORS
from generators.program.case import Case, Input
from generators.program.edits import input_like
from generators.program.roles import HEADS
from generators.program.sizes import Size
from generators.program.type_check import types_of


def simplify_contract(case: Case) -> Iterator[Case]:
    """The attention of a contract in place of the whole case: bare, as it is, and with an option fewer or simpler.

    The rest of the case is dropped, so the values that it computes change.
    """
    types = types_of(case)
    for contract in case.contracts:
        as_given = read_contract(case, contract, types)
        contiguous = as_given.map_inputs(lambda item: replace(item, layout="contiguous"), HEADS)
        for plain in (_make_bare(contiguous), contiguous, as_given, *_drop_one(as_given), *_simplify_one(as_given)):
            yield from filter(None, [spell(_with_plain_name(plain))])


def _make_bare(plain: Plain) -> Plain:
    kv_heads = plain.inputs["k"].shape[1]
    bare = plain.drop(*OPTIONS).change(scale=plain.least_scale)
    return _with_heads(_with_value_dim(bare), kv_heads, kv_heads)


def _drop_one(plain: Plain) -> Iterator[Plain]:
    window = plain.contract.window
    for name, option in OPTIONS.items():
        if getattr(plain.contract, name) != option.absent:
            fewer = plain.drop(name)
            # A window without keys to the right would be as causal as before.
            yield fewer.change(window=(window[0], -1)) if name == "causal" and window is not None else fewer
    sizes, one = dict(plain.dims), Size.of(1)
    q, k, v = (plain.inputs[name] for name in HEADS)
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads.value(sizes) != 1:
        yield _with_heads(plain, one, one)
    if heads.value(sizes) != kv_heads.value(sizes):
        yield _with_heads(plain, kv_heads, kv_heads)
        if kv_heads.value(sizes) != 1:
            yield _with_heads(plain, heads, one)
    if v.shape[-1] != q.shape[-1]:
        yield _with_value_dim(plain)


def _simplify_one(plain: Plain) -> Iterator[Plain]:
    said = plain.contract
    scales = (plain.least_scale, 0.5 if abs(said.scale) < 1 else 2.0, -1.0)
    yield from (plain.change(scale=scale) for scale in scales[: 3 if said.scale < 0 else 2] if scale != said.scale)
    if said.softcap not in (None, 1.0):
        yield plain.change(softcap=1.0)
    if said.causal == "bottom_right":
        yield plain.change(causal="top_left")
    if said.window is not None:
        left, right = said.window
        sides = [(side, right) for side in _sides(left)]
        sides += [(left, side) for side in _sides(right)] if said.causal is None else []
        yield from (plain.change(window=window) for window in sides if window != (-1, -1))
    if "mask" in plain.inputs and not plain.fused:
        any_mask = plain.map_inputs(lambda item: input_like(item.name, item.type, 0), ["mask"])
        yield any_mask.change(mask_means="drop")
    # The dtype of q needs no cast back.
    dtype, floating = plain.inputs["q"].dtype, [name for name in TENSORS if name != "mask"]
    alike = plain.map_inputs(lambda item: replace(item, dtype=dtype), floating)
    if alike != plain:
        yield alike
    if said.dropout not in (0.0, 0.5):
        yield plain.change(dropout=0.5)


def _sides(side: int) -> Iterator[int]:
    """Simpler bounds on one side, no bound first."""
    if side >= 0:
        yield -1
        yield from (s for s in dict.fromkeys((0, 1, side // 2)) if s < side)


def _with_value_dim(plain: Plain) -> Plain:
    dim = plain.inputs["q"].shape[-1]
    return plain.map_inputs(lambda item: replace(item, shape=(*item.shape[:-1], dim)), ["v"])


def _with_plain_name(plain: Plain) -> Plain:
    """The dimension H in place of a product, for query heads that share a single key head: equal cases read alike."""
    sizes, heads, kv_heads = dict(plain.dims), plain.inputs["q"].shape[1], plain.inputs["k"].shape[1]
    if heads.is_name or "H" in sizes or not 1 == kv_heads.value(sizes) < heads.value(sizes):
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
