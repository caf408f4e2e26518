"""Writers of decoding with a cache of keys and values that new tokens are written into."""

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling import layers
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_values, merge_heads
from generators.sampling.steps import AttentionFeatures

_ROOM = 128
"""Of a cache that several calls write into, each up to 34 tokens."""


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
    """A cache with room for more tokens. S new tokens are written into it from T on, or after the tokens of earlier
    calls, which a buffer counts."""
    now = _project_tokens(b, c, rotary=False)
    # A dimension of its own, so that a later call may bring another number of tokens.
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


def _project_tokens(b: Builder, c: Choices, *, rotary: bool = True) -> Heads:
    """q, k and v of S new tokens, mostly a single token, after T old tokens."""
    past = b.dims["T"]
    head_dim, length = layers.limit_dims(b, even=True), Size.of("S")
    b.dims |= {"T": past, "S": 1 if c.chance(0.7) else b.dims["S"]}
    heads, key, group = layers.draw_groups(b, c, c.draw({"none": 6.0, "group": 4.0}))
    x = b.input("x", ("B", "S", heads * head_dim), draw_values(c))
    found = [
        layers.project(b, c, name, x, n, head_dim, bias=c.chance(0.3))
        for name, n in zip("qkv", (heads, key, key), strict=True)
    ]
    q, k, v = (head.value for head in found)
    if c.chance(0.5) and rotary:
        angles = layers.rotary_angles(b, c, length, Size.of("E"), start=Size.of("T"))
        q, k = layers.rotate(b, q, angles), layers.rotate(b, k, angles)
    return Heads(Head.of(q), Head.of(k), Head.of(v), group=group)


def _open_caches(b: Builder, c: Choices, now: Heads, room: Size) -> list[tuple[str, str]]:
    """Caches for k and v, [B, heads, room, head_dim], each with the new values. They are buffers, or arguments that the
    caller keeps, and keep no gradients."""
    is_buffer, found = c.chance(0.6), []
    values = Values("constant", scale=0.0) if c.chance(0.2) else None
    for name, new in (("k", now.k.value), ("v", now.v.value)):
        _, heads, _, head_dim = b.shape(new)
        pair = [b.input(f"{name}_cache", ("B", heads, room, head_dim), values, buffer=is_buffer), new]
        if b.mode == "training":
            pair = [b.op("detach", value) for value in pair]
        found.append((pair[0], pair[1]))
    return found


def _attend_over(b: Builder, c: Choices, now: Heads, caches: list[str], keep: str = "") -> list[str]:
    """Attention over keys and values of a cache. `keep` is True where a query sees a key."""
    bias = ""
    if keep:
        zero = b.op("scalar", to="zero", value=0.0, dtype=b.dtype)
        fill: float | str = "min" if c.chance(0.5) else float("-inf")
        bias = b.op("where", keep, zero, to="bias", other=fill)
    # A single new token sees all keys; several see each other from the last key on.
    features = AttentionFeatures(causal=None if keep or b.dims["S"] == 1 else "bottom_right")
    seen = Heads(now.q, Head.of(caches[0]), Head.of(caches[1]), group=now.group)
    if bias and c.chance(0.4):
        output = b.op("sdpa", *seen.values, c.pick((keep, bias)), to="out", enable_gqa=now.group != Size.of(1))
    else:
        output = attend(b, c, seen, features, bias).output
    return [merge_heads(b, c, output), *(caches if c.chance(0.7) else [])]
