"""Simpler attention, for failures that only depend on the contract: plain operations, then one option fewer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corpus.passes.program import rename_values
from generators.errors import CaseError
from generators.program.attention_options import OPTIONS, OVER_SCORES, PER_HEAD, TENSORS, Contract, Form
from generators.program.case import Case, Input, TensorType
from generators.program.contracts import as_bhsd
from generators.program.edits import input_like, map_inputs, swap
from generators.program.ops import OPS
from generators.program.roles import HEADS
from generators.program.sizes import Size, quotient
from generators.program.type_check import types_of
from generators.program.values import DISTRIBUTIONS
from generators.sampling.builder import Builder
from generators.sampling.choices import ByteChoices
from generators.sampling.masks import Visibility, spell_visibility
from generators.sampling.steps import SCORE_STEPS

_CONVENTIONAL = ByteChoices(b"")  # every decision has its likeliest outcome


@dataclass(frozen=True, slots=True)
class Plain:
    """An attention by itself."""

    dims: tuple[tuple[str, int], ...]
    inputs: Mapping[str, Input]  # by field of the contract; q, k and v are [batch, heads, length, dim]
    contract: Contract
    mode: str = "inference"
    dynamic: bool = False
    fused: bool = False  # spelled as one call of F.scaled_dot_product_attention

    @property
    def cheapest_scale(self) -> float:
        """The scale that is written without an operation, or in the fused call without an argument `scale`."""
        head_dim = self.inputs["q"].shape[-1].value(dict(self.dims))
        return 1 / math.sqrt(max(1, head_dim)) if self.fused else 1.0

    @property
    def visibility(self) -> Visibility:
        return Visibility(self.contract.causal, self.contract.window)

    def map_inputs(self, change: Callable[[Input], Input], names: Sequence[str]) -> "Plain":
        """The same attention with `change` applied to these inputs, if it has them."""
        inputs = {name: change(item) if name in names else item for name, item in self.inputs.items()}
        return replace(self, inputs=inputs)

    def change(self, **fields: Any) -> "Plain":
        return replace(self, contract=replace(self.contract, **fields))

    def drop(self, *options: str) -> "Plain":
        inputs = {name: item for name, item in self.inputs.items() if name not in options}
        return replace(self, inputs=inputs).change(**{name: OPTIONS[name].absent for name in options})


def spell_plain(plain: Plain) -> Case | None:
    """The case with this contract, which only returns the attention's output; None if sizes do not fit."""
    b = Builder(dict(plain.dims), plain.inputs["q"].dtype, plain.mode)
    try:
        names: dict[str, Any] = {name: _get_or_add_input(b, plain.inputs[name]) for name in HEADS}
        names |= _spell_sdpa(b, plain, **names) if plain.fused else _spell_steps(b, plain, **names)
        means = plain.contract.mask_means if "mask" in names else "keep"
        b.contracts.append(replace(plain.contract, **names, mask_means=means))
        case = replace(b.case([names["output"]], dynamic=plain.dynamic), mode=plain.mode)
    except CaseError:
        return None
    constant = [item.name for item in plain.inputs.values() if not item.requires_grad]
    case = map_inputs(case, lambda item: replace(item, requires_grad=item.name not in constant))
    return next(rename_values(case))


def _get_or_add_input(b: Builder, item: Input) -> str:
    if any(i.name == item.name for i in b.inputs):
        return item.name
    return b.input(item.name, item.shape, item.values, item.dtype, item.layout)


def _spell_sdpa(b: Builder, plain: Plain, q: str, k: str, v: str) -> dict[str, Any]:
    """The names of mask, bias and output."""
    names = {name: _get_or_add_input(b, plain.inputs[name]) for name in ("mask", "bias") if name in plain.inputs}
    said = plain.contract
    output = b.op(
        "sdpa",
        *(q, k, v, *names.values()),
        to="out",
        is_causal=said.causal is not None,
        dropout_p=said.dropout,
        scale=None if said.scale == plain.cheapest_scale else said.scale,
        enable_gqa=b.size(b.shape(q)[1]) != b.size(b.shape(k)[1]),
    )
    return {**names, "output": output}


def _spell_steps(b: Builder, plain: Plain, q: str, k: str, v: str) -> dict[str, Any]:
    """The names of the further inputs and of the output."""
    names, said, inputs = dict[str, str](), plain.contract, plain.inputs
    heads, kv_heads = b.shape(q)[1], b.shape(k)[1]
    keys, values = k, v
    if b.size(kv_heads) not in (1, b.size(heads)):
        group = quotient(heads, kv_heads, b.size(heads) // max(1, b.size(kv_heads)))
        keys, values = (b.op("repeat_interleave", x, dim=1, repeats=group) for x in (k, v))
    scores = b.op("matmul", q, b.op("transpose", keys, to="kt"), to="scores")
    if said.scale != 1:
        scores = b.op("mul", scores, other=said.scale)
    scores = _change_scores(b, plain, scores, names, after_mask=False)
    if "mask" in inputs:
        mask = names["mask"] = _get_or_add_input(b, inputs["mask"])
        if said.mask_means == "keep":
            scores = b.op("where", mask, scores, to="scores", other=-math.inf)
        else:
            scores = b.op("masked_fill", scores, mask)
    if "bias" in inputs:
        names["bias"] = _get_or_add_input(b, inputs["bias"])
        scores = b.op("add", scores, names["bias"])
    if visibility := plain.visibility:
        keep = spell_visibility(b, _CONVENTIONAL, visibility, *b.shape(scores)[-2:])
        scores = b.op("where", keep, scores, to="scores", other=-math.inf)
    probs = b.op("softmax", _change_scores(b, plain, scores, names, after_mask=True), to="probs")
    if "sinks" in inputs:
        probs = b.op("narrow", probs, stop=b.shape(k)[-2])
    if b.dtype_of(probs) != b.dtype_of(v):
        probs = b.op("cast", probs, dtype=b.dtype_of(v))
    if said.dropout:
        active = "mode" if b.mode == "training" else "always"
        probs = b.op("dropout", probs, to="weights", p=said.dropout, active=active)
    return {**names, "output": b.op("matmul", probs, values, to="out")}


def _change_scores(b: Builder, plain: Plain, scores: str, names: dict[str, str], *, after_mask: bool) -> str:
    """The scores after the steps of options. Adds tensors of options to `names`."""
    for name, step in SCORE_STEPS.items():
        given = plain.inputs.get(name)
        value = given if name in TENSORS else getattr(plain.contract, name)
        if value is not None and step.after_mask is after_mask:
            if given is not None:
                value = names[name] = _add_constant(b, given)
            scores = step.spell(b, _CONVENTIONAL, scores, value, plain.visibility)
    return scores


def _add_constant(b: Builder, item: Input) -> str:
    given = _get_or_add_input(b, item)
    return b.op("detach", given) if b.mode == "training" else given


def read_contract(case: Case, contract: Contract, types: Mapping[str, TensorType]) -> Plain:
    """The attention of a contract, over inputs with the shapes, dtypes and layouts of the values it reads."""
    inputs = {
        field: _make_head(case, contract, name, types) if field in HEADS else _make_like(case, name, types[name])
        for field, name in contract.reads.items()
    }
    means = contract.mask_means
    if contract.mask is not None:
        inputs["mask"], means = _read_mask(case, contract.mask, types, means)
    plain = Plain(
        case.dims,
        inputs,
        # Kernels take no finite fill. In rows that keep a key it means the same as -inf.
        replace(contract, layout="bhsd", mask_means=means, fill=-math.inf),
        case.mode,
        case.dynamic,
        fused=any(op.name == contract.output and op.kind == "sdpa" for op in case.ops),
    )
    return plain.map_inputs(_add_head_axis, OVER_SCORES) if contract.layout == "bsd" else plain


def _make_head(case: Case, contract: Contract, name: str, types: Mapping[str, TensorType]) -> Input:
    kind = types[name]
    item = _make_like(case, name, TensorType(as_bhsd(contract, kind), kind.dtype))
    is_given = any(i.name == name for i in case.inputs)
    # A computed value is mostly a transposed [batch, length, heads, dim].
    return item if is_given and contract.layout != "bshd" else replace(item, layout="heads_inner")


def _make_like(case: Case, name: str, kind: TensorType) -> Input:
    """An input that replaces a value. It has the distribution of the input that the value is or views, if any."""
    origin = _find_origin(case, name)
    if origin is not None:
        numbers = DISTRIBUTIONS[origin.values.kind]
        if kind.dtype in numbers.dtypes and kind.rank >= numbers.min_rank:
            layout = origin.layout if origin.name == name else "contiguous"
            return Input(name, kind.shape, kind.dtype, origin.values, layout, requires_grad=origin.requires_grad)
    return input_like(name, kind, 0)


def _find_origin(case: Case, name: str) -> Input | None:
    made = case.makers
    while name in made and len(made[name].args) == 1 and not OPS[made[name].kind].owns_memory:
        name = made[name].args[0]
    return next((i for i in case.inputs if i.name == name), None)


def _read_mask(case: Case, name: str, types: Mapping[str, TensorType], means: str) -> tuple[Input, str]:
    """The original mask, without negations and expansions, and the meaning of True in it: keep or drop."""
    made = case.makers
    while name in made and made[name].kind in ("logical_not", "expand", "expand_as"):
        if made[name].kind == "logical_not":
            means = "drop" if means == "keep" else "keep"
        name = made[name].args[0]
    return _make_like(case, name, types[name]), "drop" if _find_origin(case, name) is None else means


def _add_head_axis(item: Input) -> Input:
    return item if len(item.shape) < 3 else replace(item, shape=(item.shape[0], Size.of(1), *item.shape[1:]))


def simplify_contract(case: Case) -> Iterator[Case]:
    """Cases with nothing but the attention of a contract: without options, with all options, and with an option removed
    or simplified.

    The rest of the case is dropped, so its values change.
    """
    types = types_of(case)
    for contract in case.contracts:
        as_given = read_contract(case, contract, types)
        contiguous = as_given.map_inputs(lambda item: replace(item, layout="contiguous"), HEADS)
        for plain in (_make_bare(contiguous), contiguous, as_given, *_drop_one(as_given), *_simplify_one(as_given)):
            yield from filter(None, [spell_plain(_with_plain_name(plain))])


def _make_bare(plain: Plain) -> Plain:
    kv_heads = plain.inputs["k"].shape[1]
    bare = plain.drop(*OPTIONS).change(scale=plain.cheapest_scale)
    return _with_heads(_with_value_dim(bare), kv_heads, kv_heads)


def _drop_one(plain: Plain) -> Iterator[Plain]:
    window = plain.contract.window
    for name, option in OPTIONS.items():
        if getattr(plain.contract, name) != option.absent:
            fewer = plain.drop(name)
            # Without this, the window would still hide all keys to the right.
            yield fewer.change(window=(window[0], -1)) if name == "causal" and window is not None else fewer
    sizes, one = dict(plain.dims), Size.of(1)
    heads, kv_heads = (plain.inputs[name].shape[1] for name in ("q", "k"))
    yield _with_heads(plain, one, one)
    if heads.value(sizes) != kv_heads.value(sizes):
        yield _with_heads(plain, kv_heads, kv_heads)
        if kv_heads.value(sizes) != 1:
            yield _with_heads(plain, heads, one)
    yield _with_value_dim(plain)


def _simplify_one(plain: Plain) -> Iterator[Plain]:
    said = plain.contract
    scales = (plain.cheapest_scale, 0.5 if abs(said.scale) < 1 else 2.0, -1.0)
    yield from (plain.change(scale=scale) for scale in scales[: 3 if said.scale < 0 else 2] if scale != said.scale)
    numbers = (name for name, option in OPTIONS.items() if option.form is Form.NUMBER)
    yield from (plain.change(**{name: 1.0}) for name in numbers if getattr(said, name) not in (None, 1.0))
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
    yield plain.map_inputs(lambda item: replace(item, dtype=dtype), floating)
    if said.dropout not in (0.0, 0.5):
        yield plain.change(dropout=0.5)


def _sides(side: int) -> Iterator[int]:
    if side >= 0:
        yield -1
        yield from (s for s in dict.fromkeys((0, 1, side // 2)) if s < side)


def _with_value_dim(plain: Plain) -> Plain:
    dim = plain.inputs["q"].shape[-1]
    return plain.map_inputs(lambda item: replace(item, shape=(*item.shape[:-1], dim)), ["v"])


def _with_plain_name(plain: Plain) -> Plain:
    """The name H for the number of query heads if they share a single key head, so that equal cases read alike."""
    sizes, heads, kv_heads = dict(plain.dims), plain.inputs["q"].shape[1], plain.inputs["k"].shape[1]
    if heads.is_name or "H" in sizes or not 1 == kv_heads.value(sizes) < heads.value(sizes):
        return plain
    named = replace(plain, dims=(*plain.dims, ("H", heads.value(sizes))))
    return _with_heads(named, Size.of("H"), Size.of(1))


def _with_heads(plain: Plain, heads: Size, kv_heads: Size) -> Plain:
    sizes = dict(plain.dims)

    def change(item: Input, axis: int, size: Size) -> Input:
        at = len(item.shape) + axis
        if at < 0 or item.shape[at].value(sizes) == 1:
            return item
        return replace(item, shape=swap(item.shape, at, size))

    plain = plain.map_inputs(lambda item: change(item, -3, heads), ("q", *OVER_SCORES))
    plain = plain.map_inputs(lambda item: change(item, -3, kv_heads), ("k", "v"))
    return plain.map_inputs(lambda item: change(item, -1, heads), PER_HEAD)
