"""An attention and nothing else, in the plainest lines for each thing that its contract says."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corpus.passes.spelling import rename_values
from generators.errors import CaseError
from generators.program.attention_options import OPTIONS, OVER_SCORES, TENSORS
from generators.program.case import Case, Contract, Input, TensorType
from generators.program.contracts import as_bhsd
from generators.program.edits import input_like
from generators.program.ops import OPS
from generators.program.sizes import Size, quotient
from generators.program.values import DISTRIBUTIONS
from generators.sampling.builder import Builder
from generators.sampling.choices import ByteChoices
from generators.sampling.masks import Pattern, offset
from generators.sampling.steps import add_sinks, spell_alibi, spell_softcap

_NUMBERS = ("scale", *(name for name, option in OPTIONS.items() if not option.is_tensor))
"""The fields of a contract that name no values."""
_PLAINLY = ByteChoices(b"")
"""Every decision has its likeliest outcome."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The inputs of an attention, q, k and v of [batch, heads, length, dim], and the rest of what a contract says.

    `keeps` is whether True in the mask keeps a key. `fused` is whether one call of F.scaled_dot_product_attention says
    it all.
    """

    dims: tuple[tuple[str, int], ...]
    q: Input
    k: Input
    v: Input
    scale: float = 1.0
    softcap: float | None = None
    alibi: Input | None = None
    mask: Input | None = None
    keeps: bool = True
    bias: Input | None = None
    causal: str | None = None
    window: tuple[int, int] | None = None
    sinks: Input | None = None
    dropout: float = 0.0
    mode: str = "inference"
    dynamic: bool = False
    fused: bool = False

    @property
    def default_scale(self) -> float:
        """The scale that the fused call has by itself."""
        return 1 / math.sqrt(max(1, self.q.shape[-1].value(dict(self.dims))))

    @property
    def least_scale(self) -> float:
        """The scale that takes no words."""
        return self.default_scale if self.fused else 1.0

    def map_inputs(self, change: Callable[[Input], Input], names: Sequence[str]) -> "Plain":
        """The same attention, with `change` applied to those of these inputs that it has."""
        items = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: change(item) for name, item in items.items() if item is not None}
        return replace(self, **changed)


def spell(plain: Plain) -> Case | None:
    """The case, with a contract, that returns only the attention's output; None where its sizes do not fit."""
    b = Builder(dict(plain.dims), plain.q.dtype, plain.mode)
    try:
        names = _spell_sdpa(b, plain) if plain.fused else _spell_steps(b, plain)
        means = "keep" if plain.mask is None or plain.keeps else "drop"
        b.contracts.append(Contract(**names, mask_means=means, **{key: getattr(plain, key) for key in _NUMBERS}))
        case = b.case([names["output"]], dynamic=plain.dynamic)
    except CaseError:
        return None
    return next(rename_values(case))


def _get_or_add_input(b: Builder, item: Input) -> str:
    """The name of the input, which is added unless it is there."""
    if any(i.name == item.name for i in b.inputs):
        return item.name
    return b.input(item.name, item.shape, item.values, item.dtype, item.layout)


def _spell_sdpa(b: Builder, plain: Plain) -> dict[str, Any]:
    q, k, v = (_get_or_add_input(b, item) for item in (plain.q, plain.k, plain.v))
    names = {key: _get_or_add_input(b, item) for key, item in (("mask", plain.mask), ("bias", plain.bias)) if item}
    output = b.op(
        "sdpa",
        *(q, k, v, *names.values()),
        to="out",
        is_causal=plain.causal is not None,
        dropout_p=plain.dropout,
        scale=None if plain.scale == plain.default_scale else plain.scale,
        enable_gqa=b.size(b.shape(q)[1]) != b.size(b.shape(k)[1]),
    )
    return {"q": q, "k": k, "v": v, "output": output, **names}


def _spell_steps(b: Builder, plain: Plain) -> dict[str, Any]:
    q, k, v = (_get_or_add_input(b, item) for item in (plain.q, plain.k, plain.v))
    heads, kv_heads = b.shape(q)[1], b.shape(k)[1]
    keys, values = k, v
    if b.size(kv_heads) not in (1, b.size(heads)):
        group = quotient(heads, kv_heads, b.size(heads) // max(1, b.size(kv_heads)))
        keys, values = (b.op("repeat_interleave", x, dim=1, repeats=group) for x in (k, v))
    scores = b.op("matmul", q, b.op("transpose", keys, to="kt"), to="scores")
    if plain.scale != 1:
        scores = b.op("mul", scores, other=plain.scale)
    if plain.softcap is not None:
        scores = spell_softcap(b, _PLAINLY, scores, plain.softcap)
    pattern = Pattern(plain.causal, plain.window)
    names = {"q": q, "k": k, "v": v}
    if plain.alibi is not None:
        names["alibi"] = _add_constant(b, plain.alibi)
        scores = spell_alibi(b, _PLAINLY, scores, names["alibi"], pattern)
    if plain.mask is not None:
        mask = names["mask"] = _get_or_add_input(b, plain.mask)
        if plain.keeps:
            scores = b.op("where", mask, scores, to="scores", other=-math.inf)
        else:
            scores = b.op("masked_fill", scores, mask)
    if plain.bias is not None:
        names["bias"] = _get_or_add_input(b, plain.bias)
        scores = b.op("add", scores, names["bias"])
    scores = _apply_pattern(b, scores, pattern)
    if plain.sinks is not None:
        names["sinks"] = _add_constant(b, plain.sinks)
        scores = add_sinks(b, _PLAINLY, scores, names["sinks"])
    probs = b.op("softmax", scores, to="probs")
    if plain.sinks is not None:
        probs = b.op("narrow", probs, stop=b.shape(k)[-2])
    if b.dtype_of(probs) != b.dtype_of(v):
        probs = b.op("cast", probs, dtype=b.dtype_of(v))
    if plain.dropout:
        active = "mode" if plain.mode == "training" else "always"
        probs = b.op("dropout", probs, to="weights", p=plain.dropout, active=active)
    return {**names, "output": b.op("matmul", probs, values, to="out")}


def _add_constant(b: Builder, item: Input) -> str:
    given = _get_or_add_input(b, item)
    return b.op("detach", given) if b.mode == "training" else given


def _apply_pattern(b: Builder, scores: str, pattern: Pattern) -> str:
    """The scores with -inf where a causal mask or a window drops keys: on one side of a diagonal, or off a band."""
    query, key = b.shape(scores)[-2:]
    start = offset(pattern, query, key)
    left, right = pattern.window or (-1, -1)
    right = 0 if pattern.causal else right
    if left < 0 and right < 0:
        return scores
    ones = b.op("ones", to="ones", sizes=(query, key))
    if left < 0:
        return b.op("masked_fill", scores, b.op("triu", ones, to="drop", diagonal=start + right + 1))
    if right < 0:
        return b.op("masked_fill", scores, b.op("tril", ones, to="drop", diagonal=start - left - 1))
    band = b.op("triu", b.op("tril", ones, to="keep", diagonal=start + right), to="keep", diagonal=start - left)
    return b.op("where", band, scores, to="scores", other=-math.inf)


def read_contract(case: Case, contract: Contract, types: Mapping[str, TensorType]) -> Plain:
    """The attention of a contract, over inputs with the shapes, dtypes and layouts of the values it reads."""
    inputs: dict[str, Any] = {key: _make_head(case, contract, getattr(contract, key), types) for key in ("q", "k", "v")}
    for key in TENSORS:
        name = getattr(contract, key)
        if name is not None and key != "mask":
            inputs[key] = _make_like(case, name, types[name])
    keeps = contract.mask_means == "keep"
    if contract.mask is not None:
        inputs["mask"], keeps = _read_mask(case, contract.mask, types, keeps=keeps)
    # Kernels take no finite fill. In rows that keep a key it means -inf.
    plain = Plain(
        case.dims,
        **inputs,
        **{key: getattr(contract, key) for key in _NUMBERS},
        keeps=keeps,
        mode=case.mode,
        dynamic=case.dynamic,
        fused=any(op.name == contract.output and op.kind == "sdpa" for op in case.ops),
    )
    return plain.map_inputs(_add_head_axis, OVER_SCORES) if contract.layout == "bsd" else plain


def _make_head(case: Case, contract: Contract, name: str, types: Mapping[str, TensorType]) -> Input:
    kind = types[name]
    item = _make_like(case, name, TensorType(as_bhsd(contract, kind), kind.dtype))
    given = any(i.name == name for i in case.inputs)
    if not given or contract.layout == "bshd":
        # Mostly a transposition has made it from [batch, length, heads, dim].
        item = replace(item, layout="heads_inner")
    return item


def _make_like(case: Case, name: str, kind: TensorType) -> Input:
    """An input in place of a value, with the numbers of the input that it is or views, else plain ones."""
    origin = _find_origin(case, name)
    if origin is not None:
        numbers = DISTRIBUTIONS[origin.values.kind]
        if kind.dtype in numbers.dtypes and kind.rank >= numbers.min_rank:
            layout = origin.layout if origin.name == name else "contiguous"
            return Input(name, kind.shape, kind.dtype, origin.values, layout)
    return input_like(name, kind, 0)


def _find_origin(case: Case, name: str) -> Input | None:
    made = {op.name: op for op in case.ops}
    while name in made and len(made[name].args) == 1 and not OPS[made[name].kind].owns_memory:
        name = made[name].args[0]
    return next((i for i in case.inputs if i.name == name), None)


def _read_mask(case: Case, name: str, types: Mapping[str, TensorType], *, keeps: bool) -> tuple[Input, bool]:
    """The mask before it was negated and expanded, and whether True in it keeps a key."""
    made = {op.name: op for op in case.ops}
    while name in made and made[name].kind in ("logical_not", "expand", "expand_as"):
        keeps = keeps != (made[name].kind == "logical_not")
        name = made[name].args[0]
    if _find_origin(case, name) is None:
        keeps = False
    return _make_like(case, name, types[name]), keeps


def _add_head_axis(item: Input) -> Input:
    return item if len(item.shape) < 3 else replace(item, shape=(item.shape[0], Size.of(1), *item.shape[1:]))
