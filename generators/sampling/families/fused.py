"""Writers of fused calls: scaled_dot_product_attention and flex_attention."""

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout, draw_values


def write_flex(b: Builder, c: Choices) -> list[str]:
    """flex_attention with modifications of scores and masks."""
    # On the CPU it knows no gradients.
    b.mode = "inference"
    grouped = c.chance(0.25)
    score = c.weighted({"none": 3.0, "causal": 2.0, "alibi": 2.0, "relative": 2.0, "softcap": 2.0})
    mask = c.weighted({"none": 4.0, "causal": 3.0, "window": 2.0, "document": 2.0})
    if mask == "document":
        b.dims["T"] = b.dims["S"]
    values = draw_values(c)
    heads, kv_heads = ("G*R", "G") if grouped else ("H", "H")
    q = b.input("q", ("B", heads, "S", "D"), values)
    k = b.input("k", ("B", kv_heads, "T", "D"), values)
    v = b.input("v", ("B", kv_heads, "T", "V"), values)
    given = []
    if score == "alibi":
        given.append(b.input("slopes", (heads,), Values("uniform"), "float32", parameter=c.chance(0.5)))
    if score == "relative":
        given.append(b.input("table", (heads, "S + T - 1"), parameter=c.chance(0.5)))
    if mask == "document":
        given.append(b.input("documents", ("B", "S"), Values("small_counts"), "int64"))
    return [
        b.op(
            "flex_attention",
            q,
            k,
            v,
            *given,
            to="out",
            score=score,
            mask=mask,
            enable_gqa=grouped,
            cap=c.pick((1.0, 5.0, 20.0)),
            window=c.pick((0, 1, 3, 16)),
            scale=c.weighted({None: 4.0, 1.0: 1.0, 0.3: 1.0}),
        )
    ]


_LEADS: dict[int, tuple[Size | int | str, ...]] = {3: ("B",), 4: ("B", "H"), 5: ("B", 2, "H")}


def write_sdpa(b: Builder, c: Choices) -> list[str]:
    """F.scaled_dot_product_attention with each of its arguments: 3, 4 or 5 axes, all masks, a chosen backend."""
    rank = c.weighted({3: 2.0, 4: 5.0, 5: 2.0})
    lead = tuple(Size.of(size) for size in _LEADS[rank])
    backend = c.weighted({"any": 4.0, "math": 1.0, "flash": 1.0 if rank == 4 else 0.0})
    grouped = rank > 3 and c.chance(0.25)
    kv_lead = lead
    if grouped:
        lead, kv_lead = (*lead[:-1], Size.parse("G*R")), (*lead[:-1], Size.of("G"))
    if backend == "flash":
        b.dims["V"] = b.dims["D"]
    values = draw_values(c)
    q = b.input("q", (*lead, "S", "D"), values, layout=draw_layout(c, rank))
    k = b.input("k", (*kv_lead, "T", "D"), values, layout=draw_layout(c, rank))
    v = b.input("v", (*kv_lead, "T", "V"), values, layout=draw_layout(c, rank))
    causal = c.chance(0.3)
    masks = [_mask(b, c, lead, backend)] if not causal and c.chance(0.7) else []
    # The fused kernel for CPUs has no dropout.
    dropout = 0.0 if backend == "flash" else c.weighted({0.0: 8.0, 0.1: 1.0, 0.5: 1.0})
    return [
        b.op(
            "sdpa",
            q,
            k,
            v,
            *masks,
            to="out",
            is_causal=causal,
            dropout_p=dropout,
            enable_gqa=grouped,
            backend=backend,
            scale=c.weighted({None: 5.0, 1.0: 1.0, 0.5: 1.0, 0.0: 0.3, -0.5: 0.5}),
        )
    ]


def _mask(b: Builder, c: Choices, lead: tuple[Size, ...], backend: str) -> str:
    """A mask of scores, broadcast along any of its axes."""
    whole = (*lead, Size.of("S"), Size.of("T"))
    shape = tuple(Size.of(1) if c.chance(0.3) else size for size in whole)
    if c.chance(0.4):
        shape = shape[-2:]
    elif backend != "flash" and c.chance(0.2):
        shape = shape[1:]
    boolean = c.chance(0.5)
    if boolean:
        kinds = {"random": 3.0, "padding": 3.0, "empty_row": 1.0, "causal": 2.0, "ones": 1.0, "zeros": 0.3}
        return b.input("mask", shape, Values(c.weighted(kinds), scale=0.7), "bool", layout=draw_layout(c, len(shape)))
    kind = c.weighted({"normal": 4.0, "random_mask": 2.0, "causal_mask": 2.0, "padding_mask": 2.0})
    scale = 1.0 if kind == "normal" else c.pick((float("-inf"), -1e4, 1.0))
    return b.fixed(c, b.input("mask", shape, Values(kind, scale=scale), layout=draw_layout(c, len(shape))))
