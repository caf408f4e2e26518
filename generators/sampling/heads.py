"""How models lay out q, k and v as heads: every order of the axes, packed or separate, grouped or not."""

from dataclasses import dataclass, field, replace
from typing import Self

from generators.program.case import Values
from generators.program.sizes import Size
from generators.program.values import LAYOUTS
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_ORDERS = {"bhsd": 40.0, "bshd": 42.0, "sbhd": 6.0, "hbsd": 3.0, "bhds": 3.0, "bsdh": 1.0, "shbd": 2.0, "dhsb": 0.5}
GROUPS: dict[str, tuple[str | int, ...]] = {"none": ("H", "H", 1), "group": ("G*R", "G", "R"), "one": ("H", 1, "H")}
"""Query heads, key heads, and how many query heads share a key head."""
_FLAT_ORDERS = {"bsd": 8.0, "sbd": 2.0, "bds": 1.0}


@dataclass(frozen=True, slots=True)
class Operand:
    """One of q, k and v."""

    value: str  # [B, H, S, D] or [B, S, D]
    source: str  # the value before its axes were permuted
    order: str  # the axes of `source`, such as "bshd"

    @classmethod
    def of(cls, value: str) -> Self:
        """A value with axes [B, H, S, D] that was not permuted."""
        return cls(value, value, "bhsd")


@dataclass(frozen=True, slots=True)
class Qkv:
    """q, k and v of an attention."""

    q: Operand
    k: Operand
    v: Operand
    group: Size = field(default=Size.of(1), kw_only=True)  # how many query heads share a key head

    @property
    def values(self) -> tuple[str, str, str]:
        return self.q.value, self.k.value, self.v.value


def permute_axes(b: Builder, c: Choices, value: str, order: str, target: str, to: str) -> str:
    """Permute `value` from axes in `order` to axes in `target`, by transpose where that is enough."""
    axes = tuple(order.index(axis) for axis in target)
    moved = [i for i, axis in enumerate(axes) if axis != i]
    if not moved:
        if c.deviates() and c.chance(0.5):
            return b.op("permute", value, to=to, dims=axes)
        return value
    if len(moved) == 2 and c.chance(0.5):
        i, j = moved
        if c.chance(0.3):
            i, j = i - len(axes), j - len(axes)
        if c.chance(0.2):
            i, j = j, i
        return b.op("transpose", value, to=to, dim0=i, dim1=j)
    if c.deviates():
        axes = tuple(a - len(axes) for a in axes)
    return b.op("permute", value, to=to, dims=axes)


def make_operand(b: Builder, c: Choices, source: str, order: str, to: str) -> Operand:
    """The operand with axes [B, H, S, D] that is permuted from `source`, whose axes are `order`."""
    return Operand(permute_axes(b, c, source, order, "bhsd", to), source, order)


def draw_values(c: Choices) -> Values:
    """Numbers for an activation: mostly normal, but also peaked, outlying, tiny, huge or integral."""
    kind = c.choose_default(
        {"normal": 60.0, "outliers": 6.0, "integers": 6.0, "uniform": 4.0, "one_row": 4.0, "constant": 2.0}, "values"
    )
    scale = c.choose_default({1.0: 6.0, 0.5: 1.0, 3.0: 2.0, 0.02: 1.0, 10.0: 0.5}) if kind != "one_row" else 10.0
    if kind == "outliers":
        scale = 10.0
    return Values(kind, scale=1.0 if kind == "integers" else scale)


def draw_layout(c: Choices, rank: int) -> str:
    """How an input lies in memory: mostly contiguous."""
    if not c.deviates():
        return "contiguous"
    options = {"padded": 1.0, "every_second": 1.0, "offset": 1.0, "transposed": 2.0, "heads_inner": 3.0}
    return c.draw({name: weight for name, weight in options.items() if LAYOUTS[name].min_rank <= rank})


def draw_any_layout(c: Choices, rank: int) -> str:
    """Any layout of tensors of this rank."""
    return c.pick(["contiguous", *(name for name, row in LAYOUTS.items() if row.min_rank <= rank)])


def draw_qkv(b: Builder, c: Choices) -> Qkv:
    """q, k and v as inputs of the module."""
    if c.choose("order", {"bhsd": 90.0, "bsd": 10.0}) == "bsd":
        return _draw_flat_qkv(b, c)
    group = c.choose_default({"none": 76.0, "group": 12.0, "one": 12.0}, "heads.group")
    group = "none" if group == "one" and b.dims["H"] == 1 else group
    query_heads, kv_heads, shared = map(Size.of, GROUPS[group])
    if group == "none" and b.dims["V"] == b.dims["D"] and b.dims["S"] == b.dims["T"] and c.deviates():
        packed = b.input("qkv", ("B", "S", "3*H*D"), draw_values(c))
        return split_packed(b, c, packed, Size.of("H"), Size.of("D"))
    common = c.choose("order", _ORDERS)
    together, values = not c.deviates(), draw_values(c)
    operands = []
    for name, sizes in (("q", (query_heads, "S", "D")), ("k", (kv_heads, "T", "D")), ("v", (kv_heads, "T", "V"))):
        h, s, d = (Size.of(x) for x in sizes)
        order = common if together or c.chance(0.6) else c.draw(_ORDERS)
        axes = {"b": Size.of("B"), "h": h, "s": s, "d": d}
        if order in ("bshd", "sbhd") and c.deviates():
            # All heads in the last axis, as a linear layer returns them.
            flat = b.input(name, (axes[order[0]], axes[order[1]], h * d), values, layout=draw_layout(c, 3))
            source = split_heads(b, c, flat, h, d)
        elif c.choose("heads.view", {"none": 97.0, "view": 3.0}) == "view":
            source = _draw_view(b, c, name, tuple(axes[a] for a in order), values)
        else:
            source = b.input(name, [axes[a] for a in order], values, layout=draw_layout(c, 4))
        operands.append(make_operand(b, c, source, order, name))
        values = draw_values(c) if c.deviates() else values
    return Qkv(*operands, group=shared)


def _draw_view(b: Builder, c: Choices, name: str, shape: tuple[Size, ...], values: Values) -> str:
    """A value of this shape that is a view of an input: expanded, a slice, every second row, or overlapping windows."""
    how, (first, second, length, dim) = c.pick(("expand", "slice", "every", "windows")), shape
    if how == "expand":
        return b.op("expand", b.input(name, (first, 1, length, dim), values), sizes=shape)
    if how == "slice":
        wide = b.input(name, (first, second, length + 4, dim), values, layout=draw_layout(c, 4))
        return b.op("narrow", wide, dim=2, start=1, stop=length + 1)
    if how == "every":
        return b.op("narrow", b.input(name, (first, second, length * 2, dim), values), dim=2, stop=length * 2, step=2)
    # Adjacent windows overlap in all elements but the ends.
    return b.op("unfold", b.input(name, (first, second, length + dim - 1), values), dim=2, size=dim)


def split_heads(b: Builder, c: Choices, value: str, heads: Size, head_dim: Size) -> str:
    """[..., heads * head_dim] as [..., heads, head_dim]."""
    form = c.draw({"view": 7.0, "reshape": 3.0})
    lead = b.shape(value)[:-1]
    if c.chance(0.3):
        lead = (lead[0], Size.of(-1))
    if b.inputs and any(i.name == value and i.layout != "contiguous" for i in b.inputs):
        form = "reshape"
    return b.op(form, value, sizes=(*lead, heads, head_dim))


def split_packed(b: Builder, c: Choices, x: str, heads: Size, head_dim: Size) -> Qkv:
    """[B, S, 3 * heads * head_dim] as q, k and v of [B, heads, S, head_dim], in a way that models use."""
    how = c.draw({"chunk": 2.0, "permute": 1.0, "select": 1.0})
    if how != "chunk":
        x = b.op("view", x, sizes=(*b.shape(x)[:-1], Size.of(3), heads, head_dim))
    if how == "permute":
        x = b.op("permute", x, dims=(2, 0, 3, 1, 4))
    found = []
    for i, name in enumerate("qkv"):
        if how == "chunk":
            part = b.op("chunk", x, to=name, chunks=3, index=i)
            part = b.op("reshape", part, sizes=(*b.shape(part)[:-1], heads, head_dim))
        else:
            part = b.op(c.pick(("select", "unbind")), x, to=name, dim=0 if how == "permute" else 2, index=i)
        found.append(Operand.of(part) if how == "permute" else make_operand(b, c, part, "bshd", name))
    return Qkv(*found)


def _draw_flat_qkv(b: Builder, c: Choices) -> Qkv:
    """q, k and v of a single head, without a head axis, or with an axis of size 1 from unsqueeze."""
    order, values, single = c.draw(_FLAT_ORDERS), draw_values(c), c.chance(0.35)
    operands = []
    for name, s, d in (("q", "S", "D"), ("k", "T", "D"), ("v", "T", "V")):
        axes = {"b": "B", "s": s, "d": d}
        source = b.input(name, [axes[a] for a in order], values, layout=draw_layout(c, 3))
        operands.append(make_flat_operand(b, c, source, order, name, single=single))
    return Qkv(*operands)


def make_flat_operand(b: Builder, c: Choices, source: str, order: str, to: str, *, single: bool) -> Operand:
    """The operand with a single head, [B, S, D], or with `single` [B, 1, S, D], from `source` with axes `order`."""
    value = permute_axes(b, c, source, order, "bsd", to)
    if not single:
        return Operand(value, source, order)
    value = b.op("unsqueeze", value, dim=1)
    return Operand.of(b.op("permute", value, dims=(0, 1, 2, 3)) if c.chance(0.4) else value)


def merge_heads(b: Builder, c: Choices, value: str) -> str:
    """[B, H, S, D] as [B, S, H * D]. A value without a head axis stays."""
    if b.rank(value) == 3:
        return value
    batch, heads, seq_len, head_dim = b.shape(value)
    if b.size(heads) == 1 and c.chance(0.4):
        return b.op("squeeze", value, dim=1)
    moved = b.op("transpose", value, dim0=1, dim1=2) if c.chance(0.7) else b.op("permute", value, dims=(0, 2, 1, 3))
    form = c.draw({"reshape": 7.0, "contiguous": 3.0})
    if form == "contiguous":
        moved = b.op("contiguous", moved)
    last = Size.of(-1) if c.chance(0.2) else heads * head_dim
    return b.op("view" if form == "contiguous" else "reshape", moved, sizes=(batch, seq_len, last))


def restore_axes(b: Builder, c: Choices, qkv: Qkv, output: str) -> str:
    """The output permuted back to [B, S, H, D], if q, k and v came so and a contract describes the output."""
    at = next((i for i, contract in enumerate(b.contracts) if contract.output == output), None)
    if at is None or any(operand.order != "bshd" or b.rank(operand.source) != 4 for operand in (qkv.q, qkv.k, qkv.v)):
        return output
    moved = permute_axes(b, c, output, "bhsd", "bshd", "out")
    b.contracts[at] = replace(
        b.contracts[at], q=qkv.q.source, k=qkv.k.source, v=qkv.v.source, output=moved, layout="bshd"
    )
    return moved
