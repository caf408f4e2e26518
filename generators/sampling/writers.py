"""Writers of whole programs: decoding with caches, linear attention, and torch's own attention."""

from generators.program.case import Attr, Values
from generators.program.ops import OPS
from generators.program.ops.attention import FLEX_MASKS
from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.blocks import draw_groups, limit_dims, project, rotary_angles, rotate
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Operand, Qkv, draw_layout, draw_values, merge_heads
from generators.sampling.steps import AttentionExtras

_ROOM = 128  # the length of a cache that several calls write into; each writes up to 34 tokens


def write_kv_cache(b: Builder, c: Choices) -> list[str]:
    """Decoding with a cache: S new tokens, mostly a single token, after T old tokens. Keys and values are returned."""
    now = _project_tokens(b, c)
    joined = []
    longer = c.chance(0.3)
    for name, new in (("k", now.k.value), ("v", now.v.value)):
        old = b.input(f"past_{name}", ("B", b.shape(new)[1], "T+7" if longer else "T", b.shape(new)[3]))
        old = b.op("narrow", old, dim=2, stop="T") if longer else old
        joined.append(b.op("cat", old, new, to="keys" if name == "k" else "values", dim=c.pick((2, -2))))
    return _attend_over(b, c, now, joined)


def write_static_cache(b: Builder, c: Choices) -> list[str]:
    """A cache with room for more tokens. S new tokens are written from T on, or from a buffer's count on.

    The buffer counts the tokens of earlier calls.
    """
    now = _project_tokens(b, c, rotary=False)
    # A separate dimension, so that a later call may have another number of tokens.
    end, room = Size.parse("S+T"), Size.of("L")
    b.dims["L"] = b.size(end) + c.pick((0, 1, 7))
    is_counted = c.chance(0.4)
    if is_counted:
        b.dims |= {"S": min(b.dims["S"], 17), "L": _ROOM}
        count = b.input("count", (), Values("zero_one"), "int64", buffer=True)
        position = b.op("add", b.op("arange", to="position", stop="S"), count, to="position")
        last = b.op("narrow", position, to="last", dim=0, start=Size.parse("S-1"), stop="S")
        b.op("copy_", count, b.op("squeeze", b.op("add", last, to="last", other=1), to="last"))
    elif c.chance(0.5):
        first = Values("positions", scale=float(b.dims["T"]))
        position = b.input("cache_position", ("S",), first, "int64")
    else:
        position = b.op("arange", to="position", start="T", stop=end)
    kind = c.draw({"index_copy_": 3.0, "index_put_": 2.0, "set_slice": 0.0 if is_counted else 3.0})
    caches = []
    for cache, new in _open_caches(b, c, now, room):
        if kind == "set_slice":
            caches.append(b.op(kind, cache, new, dim=2, start="T", stop=end))
        else:
            caches.append(b.op(kind, cache, position, new, dim=2))
    if not is_counted and c.chance(0.3):
        return _attend_over(b, c, now, [b.op("narrow", cache, to="seen", dim=2, stop=end) for cache in caches])
    columns = b.op("arange", to="columns", stop=room)
    return _attend_over(b, c, now, caches, keep=b.op("le", columns, b.op("unsqueeze", position, dim=-1), to="keep"))


def _project_tokens(b: Builder, c: Choices, *, rotary: bool = True) -> Qkv:
    """q, k and v of S new tokens, mostly a single token, after T old tokens."""
    past = b.dims["T"]
    head_dim, length = limit_dims(b, even=True), Size.of("S")
    b.dims |= {"T": past, "S": 1 if c.chance(0.7) else b.dims["S"]}
    heads, key, group = draw_groups(b, c, c.draw({"none": 6.0, "group": 4.0}))
    x = b.input("x", ("B", "S", heads * head_dim), draw_values(c))
    found = [
        project(b, c, name, x, n, head_dim, bias=c.chance(0.3))
        for name, n in zip("qkv", (heads, key, key), strict=True)
    ]
    q, k, v = (operand.value for operand in found)
    if c.chance(0.5) and rotary:
        angles = rotary_angles(b, c, length, Size.of("E"), start=Size.of("T"))
        q, k = rotate(b, q, angles), rotate(b, k, angles)
    return Qkv(Operand.of(q), Operand.of(k), Operand.of(v), group=group)


def _open_caches(b: Builder, c: Choices, now: Qkv, room: Size) -> list[tuple[str, str]]:
    """(cache, new values) for k and v, [B, heads, room, head_dim].

    Caches are buffers, or arguments that the caller keeps. They have no gradients.
    """
    is_buffer, found = c.chance(0.6), []
    values = Values("constant", scale=0.0) if c.chance(0.2) else None
    for name, new in (("k", now.k.value), ("v", now.v.value)):
        _, heads, _, head_dim = b.shape(new)
        pair = [b.input(f"{name}_cache", ("B", heads, room, head_dim), values, buffer=is_buffer), new]
        if b.mode == "training":
            pair = [b.op("detach", value) for value in pair]
        found.append((pair[0], pair[1]))
    return found


def _attend_over(b: Builder, c: Choices, now: Qkv, caches: list[str], keep: str = "") -> list[str]:
    """Attention over keys and values of a cache. `keep`: True if a query sees a key."""
    bias = ""
    if keep:
        zero = b.op("scalar", to="zero", value=0.0, dtype=b.dtype)
        fill: float | str = "min" if c.chance(0.5) else float("-inf")
        bias = b.op("where", keep, zero, to="bias", other=fill)
    # A single new token sees all keys. Several are causal, with the last token at the last key.
    extras = AttentionExtras(causal=None if keep or b.dims["S"] == 1 else "bottom_right")
    seen = Qkv(now.q, Operand.of(caches[0]), Operand.of(caches[1]), group=now.group)
    if bias and c.chance(0.4):
        output = b.op("sdpa", *seen.values, c.pick((keep, bias)), to="out", enable_gqa=now.group != Size.of(1))
    else:
        output, _ = attend(b, c, seen, extras, bias)
    return [merge_heads(b, c, output), *(caches if c.chance(0.7) else [])]


_LONGEST, _LARGEST = 33, 16
_FEATURES = {"elu": 3.0, "relu": 2.0, "softmax": 2.0, "none": 2.0}
_DECAYS = {"head": ("H", 1, 1), "step": ("B", "H", "S", 1), "key": ("B", "H", "S", "D")}


def write_linear_attention(b: Builder, c: Choices) -> list[str]:
    """Linear attention: queries times a running sum of keys times values, [B, H, S, D, V], which decays.

    The decay is of a head, of a step, or of an element of the key.
    """
    b.dims |= {name: min(b.dims[name], most) for name, most in (("S", _LONGEST), ("D", _LARGEST), ("V", _LARGEST))}
    values, shape, features = draw_values(c), ("B", "H", "S", "D"), c.draw(_FEATURES)
    q, k, v = (
        b.input(name, (*shape[:3], size), values, layout=draw_layout(c, 4))
        for name, size in zip("qkv", "DDV", strict=True)
    )
    if features != "none":
        q, k = (b.op(features, value) for value in (q, k))
    if features == "elu":
        q, k = (b.op("add", value, other=1) for value in (q, k))
    how = c.pick([*_DECAYS])
    gate = b.input("gate", _DECAYS[how], Values(scale=2.0), parameter=how == "head")
    decay = b.op("sigmoid", gate, to="decay")
    decay = b.op("unsqueeze", decay, dim=0) if how == "head" else decay
    forms = {"loop": 2.0, "scan": 3.0, "associative_scan": 3.0, "pointwise_scan": 0.1 if b.device == "cpu" else 3.0}
    options: dict[str, Attr] = {"dim": c.pick((2, -3)), "reverse": c.chance(0.2), "form": c.draw(forms)}
    wide = b.op("unsqueeze", decay, to="decay", dim=-1)
    state = b.op("mul", b.op("unsqueeze", k, dim=-1), b.op("unsqueeze", v, dim=-2), to="products")
    for _ in range(c.draw({1: 5.0, 2: 1.0})):
        state = b.op("decayed_sum", state, wide, to="state", **options)
    out = b.op("squeeze", b.op("matmul", b.op("unsqueeze", q, dim=-2), state, to="out"), dim=-2)
    if features in ("elu", "softmax") and c.chance(0.5):
        total = b.op("decayed_sum", k, decay, to="total", **{**options, "dim": 2})
        norm = b.op("sum", b.op("mul", q, total, to="norm"), dim=-1, keepdim=True)
        out = b.op("div", out, b.op("add", norm, other=1e-6))
    return [merge_heads(b, c, out), *([state] if c.chance(0.3) else [])]


_BLOCK = 128  # a mask of whole blocks; before torch 2.15, Inductor compiles no padding of a mask over heads
_LEAST_HEAD_DIM = 16  # compiled flex_attention takes no smaller head_dim on CUDA


def write_flex(b: Builder, c: Choices) -> list[str]:
    """flex_attention with modifications of scores and masks."""
    if b.device == "cpu":
        b.mode = "inference"  # it has no gradients there
    else:
        b.dims.update({name: max(b.dims[name], _LEAST_HEAD_DIM) for name in "DV"})
    grouped = c.chance(0.25)
    score = c.draw({"none": 3.0, "causal": 2.0, "alibi": 2.0, "relative": 2.0, "softcap": 2.0})
    masks = c.draw({0: 2.0, 1: 4.0, 2: 4.0})
    weights = {"causal": 3.0, "window": 2.0, "documents": 1.0, "odd_heads": 4.0}
    drawn = {c.draw(weights) for _ in range(masks)}
    mask = "+".join(name for name in FLEX_MASKS if name in drawn) or "none"
    if "odd_heads" in drawn and c.chance(0.7):
        b.dims.update(S=_BLOCK, T=_BLOCK)
    values = draw_values(c)
    heads, kv_heads = ("G*R", "G") if grouped else ("H", "H")
    length = "S" if "documents" in drawn else "T"
    q = b.input("q", ("B", heads, "S", "D"), values)
    k = b.input("k", ("B", kv_heads, length, "D"), values)
    v = b.input("v", ("B", kv_heads, length, "V"), values)
    given = []
    if score == "alibi":
        given.append(b.input("slopes", (heads,), Values("uniform"), "float32", parameter=c.chance(0.5)))
    if score == "relative":
        given.append(b.input("table", (heads, f"S + {length} - 1"), parameter=c.chance(0.5)))
    if "documents" in drawn:
        given.append(b.input("documents", ("B", "S"), Values("small_counts"), "int64"))
    numbers = {"cap": c.pick((1.0, 5.0, 20.0)), "window": c.pick((0, 1, 3, 16))}
    scale = c.draw({None: 4.0, 1.0: 1.0, 0.3: 1.0})
    if b.device != "cpu" and mask != "none":
        numbers["block"] = c.draw({128: 3.0, 256: 1.0, 512: 1.0})
    options: dict[str, Attr] = {"score": score, "mask": mask, "enable_gqa": grouped, "scale": scale}
    if drawn:
        options |= {"per_head": c.chance(0.3), "per_row": c.chance(0.3)}
    return [b.op("flex_attention", q, k, v, *given, to="out", **options, **numbers)]


_EMBED = Size.parse("H*D")
_MOST_FEATURES = 128
_MASKS = {"none": 6.0, "attn_mask": 3.0, "key_padding_mask": 4.0, "attn_mask+key_padding_mask": 1.0}


def write_multihead_attention(b: Builder, c: Choices) -> list[str]:
    """nn.MultiheadAttention: self and cross attention, every mask and flag, fast path on and off."""
    attrs = _draw_attributes(b, c)
    own = c.chance(0.65)
    query = _draw_rows(b, c, "x", "S", attrs)
    key = value = query if own else _draw_rows(b, c, "memory", "T", attrs)
    if not own and c.chance(0.3):
        value = _draw_rows(b, c, "values", "T", attrs)
    masks = c.choose("layer.masks", _MASKS)
    causal = own and not masks.startswith("attn_mask") and c.chance(0.25)
    given = _draw_masks(b, c, masks, "S" if own else "T", causal=causal)
    attrs |= {"causal": causal, "masks": masks, "need_weights": c.chance(0.5)}
    output = b.op("multihead_attention", query, key, value, *given, to="attention", **attrs)
    return [b.op("add", query, output, to="out") if c.chance(0.3) else output]


def write_transformer_layers(b: Builder, c: Choices) -> list[str]:
    """nn.TransformerEncoderLayer, one or two: masks, norms, fast path on and off."""
    attrs = _draw_attributes(b, c)
    b.dims["M"] = c.pick((1, 8, 16, 64))
    attrs |= {"feedforward": "M", "activation": c.pick(("relu", "gelu")), "norm_first": c.chance(0.4)}
    kind = "transformer_encoder_layer"
    x = _draw_rows(b, c, "x", "S", attrs)
    for _ in range(c.draw({1: 3.0, 2: 1.0})):
        masks = "none" if c.chance(0.4) else c.pick(OPS[kind].attributes["masks"].words)
        causal = "src_mask" not in masks.split("+") and c.chance(0.3)
        given = _draw_masks(b, c, masks, "S", causal=causal)
        x = b.op(kind, x, *given, to="layer", **attrs, masks=masks, causal=causal)
    return [x]


def _draw_attributes(b: Builder, c: Choices) -> dict[str, Attr]:
    """The attributes that these layers share. Also reduces dimensions to those of a small layer."""
    if b.dims["H"] * b.dims["D"] > _MOST_FEATURES:
        b.dims["D"] = 8
    if b.dims["H"] % 2 and c.chance(0.7):
        # The fast path needs an even number of heads.
        b.dims["H"] = 2
    return {
        "heads": "H",
        "batch_first": c.chance(0.75),
        "bias": c.chance(0.85),
        "dtype": b.dtype,
        "fast_path": c.chance(0.7),
        "seed": c.below(100),
        "dropout": c.draw({0.0: 6.0, 0.1: 2.0, 0.5: 1.0}),
    }


def _draw_rows(b: Builder, c: Choices, name: str, length: str, attrs: dict[str, Attr]) -> str:
    """Tokens as the layer reads them, [batch, length, width], or with length first."""
    shape = ("B", length, _EMBED) if attrs["batch_first"] else (length, "B", _EMBED)
    return b.input(name, shape, draw_values(c), layout=draw_layout(c, 3))


def _draw_masks(b: Builder, c: Choices, masks: str, key: str, *, causal: bool) -> list[str]:
    """The masks of these names, which `+` joins, over keys of the length `key`.

    All masks are boolean (True hides a key), or all are added to the scores. The causal mask is added, and torch
    deprecates mixtures.
    """
    added = causal or c.chance(0.3)
    return [_draw_mask(b, c, key, added=added, pads="padding" in name) for name in masks.split("+") if name != "none"]


def _draw_mask(b: Builder, c: Choices, key: str, *, added: bool, pads: bool) -> str:
    shape = ("B", key) if pads else ("B*H", "S", key) if c.chance(0.3) else ("S", key)
    if added:
        values = Values("padding_mask", scale=c.pick((float("-inf"), -1e4)))
        if not pads:
            values = Values("causal_mask", scale=float("-inf")) if c.chance(0.4) else Values("normal")
        return b.freeze(c, b.input("bias", shape, values))
    if pads:
        keep = b.input("keep", shape, Values(c.draw({"padding": 8.0, "random": 1.0, "ones": 1.0}), scale=0.7), "bool")
        return b.op("logical_not", keep, to="drop")
    if c.chance(0.6):
        return b.op(
            "triu", b.op("ones", to="ones", sizes=tuple(map(Size.of, shape)), dtype="bool"), to="drop", diagonal=1
        )
    return b.input("drop", shape, Values("random", scale=0.3), "bool")
