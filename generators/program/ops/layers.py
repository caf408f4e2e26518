"""torch's own attention layers: nn.MultiheadAttention and nn.TransformerEncoderLayer.

Parameters belong to the layer and are drawn from `seed`. `fast_path: false` switches the fast path of
torch.backends.mha off, for the whole case. `masks` says which tensors follow the first arguments. With `causal` the
text makes the causal mask itself and passes the hint that it is one.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from generators.errors import CaseError, require
from generators.program.case import TensorType
from generators.program.dtypes import FLOATS, category, promote
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, flag, must_equal, one_float, show, word
from generators.program.sizes import Size


def _list_options(attrs: Mapping[str, Any]) -> Sequence[str]:
    return () if attrs["masks"] == "none" else attrs["masks"].split("+")


def _float(call: Call, args: Sequence[TensorType]) -> str:
    """The common dtype of these arguments. Raises CaseError unless it is that of the layer's parameters."""
    dtype, own = one_float(call, args), call.attrs["dtype"]
    require(bool(dtype == own or call.autocast), f"needs arguments of the layer's dtype, {own}, got {dtype}")
    return dtype


def _check_heads(call: Call, embed: Size) -> None:
    heads = call.attrs["heads"]
    number, width = heads.value(call.dims), embed.value(call.dims)
    if number < 1 or width < 1 or width % number:
        raise CaseError(f"{embed} = {width} is not a positive multiple of {heads} = {number} heads")


def _lengths(call: Call, x: TensorType) -> tuple[Size, Size]:
    """The batch and the length of an argument."""
    require(x.rank == 3, f"needs arguments of three axes, got {show(x.shape)}")
    return (x.shape[0], x.shape[1]) if call.attrs["batch_first"] else (x.shape[1], x.shape[0])


def _check_masks(call: Call, masks: Sequence[TensorType], query: TensorType, key: TensorType) -> None:
    """Raises CaseError unless the masks, of scores or of keys, fit queries and keys."""
    (batch, length), (_, keys) = _lengths(call, query), _lengths(call, key)
    names = _list_options(call.attrs)
    if call.attrs["causal"]:
        taken = next((name for name in names if not name.endswith("key_padding_mask")), "")
        require(not taken, f"takes {taken} or causal, not both")
        must_equal(length, keys, call.dims, "lengths under a causal mask")
    for name, mask in zip(names, masks, strict=True):
        alike = category(mask.dtype) == 2 and one_float(call, (query, mask)) == one_float(call, (query,))
        if mask.dtype != "bool" and not alike:
            raise CaseError(f"{name} must be boolean or have the dtype of what it masks, got {mask.dtype}")
        shapes: list[tuple[Size, ...]] = [(batch, keys)]
        if not name.endswith("key_padding_mask"):
            shapes = [(length, keys), (batch * call.attrs["heads"], length, keys)]
        if mask.sizes(call.dims) not in [tuple(s.value(call.dims) for s in shape) for shape in shapes]:
            raise CaseError(f"{name} has shape {show(mask.shape)}, expected {' or '.join(show(s) for s in shapes)}")


def _attention(call: Call) -> TensorType:
    query, key, value, *masks = call.args
    dtype = _float(call, (query, key, value))
    _check_heads(call, query.shape[-1])
    call.check_probability("dropout")
    for other in (key, value):
        must_equal(query.shape[-1], other.shape[-1], call.dims, "widths of the arguments")
        must_equal(_lengths(call, query)[0], _lengths(call, other)[0], call.dims, "batches")
    must_equal(_lengths(call, key)[1], _lengths(call, value)[1], call.dims, "lengths of key and value")
    _check_masks(call, masks, query, key)
    return TensorType(query.shape, dtype)


def _construct(line: Line, *arguments: str) -> str:
    """The layer, its parameters drawn."""
    words = [*arguments, *(["batch_first=True"] if line.attrs["batch_first"] else [])]
    if line.attrs["dtype"] != "float32":
        words.append(f"dtype=torch.{line.attrs['dtype']}")
    return f"set_weights(nn.{_LAYERS[line.kind][0]}({', '.join(words)}), {line.attrs['seed']})"


_TRUE = ("bias", "need_weights")
"""The flags that torch takes for true where they are left out."""


def _flags(line: Line, *names: str) -> list[str]:
    return [f"{name}={line.attrs[name]}" for name in names if line.attrs[name] is not (name in _TRUE)]


def _attention_made(line: Line) -> str:
    words = [str(line.types[0].shape[-1]), str(line.attrs["heads"])]
    if line.attrs["dropout"]:
        words.append(f"dropout={line.text('dropout')}")
    return _construct(line, *words, *_flags(line, "bias"))


def _before(line: Line) -> list[str]:
    """The causal mask."""
    if not line.attrs["causal"]:
        return []
    x = line.args[0]
    length = f"{x}.size({int(line.attrs['batch_first'])})"
    made = f"nn.Transformer.generate_square_subsequent_mask({length}, device={x}.device, dtype={x}.dtype)"
    return [f"causal_mask = {made}"]


def _call_layer(line: Line, *more: str) -> str:
    """The call of the layer: its arguments, masks and hints."""
    _, arguments, causal_mask = _LAYERS[line.kind]
    words = [*line.args[:arguments]]
    words += [f"{name}={mask}" for name, mask in zip(_list_options(line.attrs), line.args[arguments:], strict=True)]
    if line.attrs["causal"]:
        words += [f"{causal_mask}=causal_mask", "is_causal=True"]
    return f"self.{line.name}({', '.join([*words, *more])})"


def _attention_text(line: Line) -> str:
    return f"{_call_layer(line, *_flags(line, 'need_weights'))}[0]"


def _write_transformer(line: Line) -> str:
    words = [str(line.types[0].shape[-1]), *(str(line.attrs[name]) for name in ("heads", "feedforward"))]
    words.append(f"dropout={line.text('dropout')}")
    if line.attrs["activation"] != "relu":
        words.append(f'activation="{line.attrs["activation"]}"')
    return _construct(line, *words, *_flags(line, "norm_first", "bias"))


def _transformer(call: Call) -> TensorType:
    x, *masks = call.args
    _float(call, [x])
    _check_heads(call, x.shape[-1])
    call.check_probability("dropout")
    require(call.value("feedforward") >= 1, "feedforward has to be positive")
    _check_masks(call, masks, x, x)
    # Under autocast what is added is in the lower dtype.
    dtypes = [x.dtype, *([call.autocast] if call.autocast else [])]
    return TensorType(x.shape, promote([(dtype, x.rank) for dtype in dtypes]))


_SIZE, _OFF, _ON = Attribute(Kind.SIZE, required=True), flag(), flag(default=True)
_ANY = {
    "heads": _SIZE,
    "batch_first": _OFF,
    "bias": _ON,
    "causal": _OFF,
    "dropout": Attribute(Kind.NUMBER, 0.0),
    "dtype": word(*FLOATS[:3]),
    "fast_path": _ON,
    "seed": Attribute(Kind.INT, 0),
}
_ATTENTION = {
    **_ANY,
    "masks": word("none", "attn_mask", "key_padding_mask", "attn_mask+key_padding_mask"),
    "need_weights": _ON,
}
_TRANSFORMER = {
    **_ANY,
    "feedforward": _SIZE,
    "activation": word("relu", "gelu"),
    "norm_first": _OFF,
    "masks": word("none", "src_mask", "src_key_padding_mask", "src_mask+src_key_padding_mask"),
}
_layer = partial(OpSpec, owns_memory=False, before=_before, optional=_list_options, random=True)

_LAYERS = {
    "multihead_attention": ("MultiheadAttention", 3, "attn_mask"),
    "transformer_encoder_layer": ("TransformerEncoderLayer", 1, "src_mask"),
}
"""The class, the number of arguments before the masks, and the mask that `causal` sets."""

OPS = [
    _layer("multihead_attention", (3, 5), _attention, _attention_text, _ATTENTION, init=_attention_made, cost=4),
    _layer(
        "transformer_encoder_layer", (1, 3), _transformer, _call_layer, _TRANSFORMER, init=_write_transformer, cost=5
    ),
]
