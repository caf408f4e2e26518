"""Attention over views: slices, every second element, selected axes, expanded and overlapping strides."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, draw_layout, draw_values

_AXES = {"q": ("S", "D"), "k": ("T", "D"), "v": ("T", "V")}


def write(b: Builder, c: Choices) -> list[str]:
    """q, k and v of [B, H, length, dim], each seen through a view of something larger or smaller."""
    found = []
    common = c.weighted(
        {"": 4.0, "heads": 1.0, "length": 1.0, "every": 1.0, "select": 1.0, "windows": 1.0, "batch": 1.0}
    )
    for name, (length, dim) in _AXES.items():
        how = common or c.pick(("heads", "length", "every", "select", "windows", "batch", "columns"))
        value = _viewed(b, c, name, how, Size.of(length), Size.of(dim))
        found.append(Head(value, value, "bhsd"))
    return [attend(b, c, Heads(found[0], found[1], found[2], Size.of(1)), c.wildness / 5).output]


def _viewed(b: Builder, c: Choices, name: str, how: str, length: Size, dim: Size) -> str:
    batch, heads = Size.of("B"), Size.of("H")
    values = draw_values(c)
    if how == "heads":
        one = b.input(name, (batch, 1, length, dim), values)
        return b.op("expand", one, sizes=(batch, heads, length, dim))
    if how == "batch":
        one = b.input(name, (heads, length, dim), values)
        return b.op("expand", b.op("unsqueeze", one), sizes=(batch, heads, length, dim))
    if how == "length":
        start = c.pick((0, 1, 3))
        wide = b.input(name, (batch, heads, length + 4, dim), values, layout=draw_layout(c, 4))
        return b.op("narrow", wide, dim=2, start=start, stop=length + start)
    if how == "columns":
        wide = b.input(name, (batch, heads, length, dim * 3), values)
        before = dim * c.pick((0, 1, 2))
        return b.op("narrow", wide, start=before, stop=before + dim)
    if how == "every":
        wide = b.input(name, (batch, heads, length * 2, dim), values)
        return b.op("narrow", wide, dim=2, stop=length * 2, step=2)
    if how == "select":
        deep = b.input(name, (batch, heads, length, dim, 2), values)
        return b.op("select", deep, dim=-1, index=c.pick((0, 1)))
    # Each position is a window over the next: neighbours share all but one of their elements.
    line = b.input(name, (batch, heads, length + dim - 1), values)
    return b.op("unfold", line, dim=2, size=dim)


FAMILY = Family(weight=3.0, habits={"scale.place": "scores"}, write=write)
