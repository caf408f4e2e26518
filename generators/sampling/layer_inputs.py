"""What torch's own attention layers are given: rows of tokens, and masks in each form that they take."""

from generators.program.case import Attr, Values
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout, draw_values

EMBED = Size.parse("H*D")
_MOST = 128


def layer_attributes(b: Builder, c: Choices, dropout: str) -> dict[str, Attr]:
    """The attributes all of these layers have. Sizes that make no small layer are cut down."""
    if b.dims["H"] * b.dims["D"] > _MOST:
        b.dims["D"] = 8
    if b.dims["H"] % 2 and c.chance(0.7):
        # The fast path takes even numbers of heads.
        b.dims["H"] = 2
    return {
        "heads": "H",
        "batch_first": c.chance(0.75),
        "bias": c.chance(0.85),
        "dtype": b.dtype,
        "fast_path": c.chance(0.7),
        "seed": c.below(100),
        "dropout": c.weighted({0.0: 6.0, 0.1: 2.0, 0.5: 1.0}) if dropout == "any" else 0.0,
    }


def rows(b: Builder, c: Choices, name: str, length: str, width: Size, attrs: dict[str, Attr], *, batched: bool) -> str:
    """Tokens as the layer reads them, [batch, length, width], or with length first, or without batch."""
    shape: tuple[Size | str, ...] = (length, width)
    if batched:
        shape = ("B", length, width) if attrs["batch_first"] else (length, "B", width)
    return b.input(name, shape, draw_values(c), layout=draw_layout(c, len(shape)))


def draw_masks(b: Builder, c: Choices, masks: str, memory: str, *, batched: bool, causal: bool) -> list[str]:
    """The masks of these names, joined by `+`; those of memory, and of an attention to it, are for keys of that length.

    All boolean (True takes a key away) or all added, as the mask of `causal` is: torch means to give up mixtures.
    """
    added = causal or c.chance(0.3)
    return [
        (_of_keys if name.endswith("key_padding_mask") else _of_scores)(
            b, c, "S" if name.startswith(("src", "tgt")) else memory, added=added, batched=batched
        )
        for name in masks.split("+")
        if name != "none"
    ]


def _of_keys(b: Builder, c: Choices, key: str, *, added: bool, batched: bool) -> str:
    shape: tuple[Size | str, ...] = ("B", key) if batched else (key,)
    if added:
        return b.fixed(c, b.input("padding", shape, Values("padding_mask", scale=c.pick((float("-inf"), -1e4)))))
    keep = b.input("keep", shape, Values(c.weighted({"padding": 8.0, "random": 1.0, "ones": 1.0}), scale=0.7), "bool")
    return b.op("logical_not", keep, to="drop")


def _of_scores(b: Builder, c: Choices, key: str, *, added: bool, batched: bool) -> str:
    shape: tuple[Size | str, ...] = ("S", key)
    if c.chance(0.3):
        shape = (Size.parse("B*H") if batched else Size.of("H"), "S", key)
    if added:
        values = Values("causal_mask", scale=float("-inf")) if c.chance(0.4) else Values("normal")
        return b.fixed(c, b.input("bias", shape, values))
    if c.chance(0.6):
        ones = b.op("ones", to="ones", sizes=tuple(Size.of(s) for s in shape), dtype="bool")
        return b.op("triu", ones, to="drop", diagonal=1)
    return b.input("drop", shape, Values("random", scale=0.3), "bool")
