"""F.scaled_dot_product_attention with each of its arguments: inputs of 3, 4 and 5 axes, every mask, a backend asked for."""

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_layout, draw_values

_LEADS: dict[int, tuple[Size | int | str, ...]] = {3: ("B",), 4: ("B", "H"), 5: ("B", 2, "H")}


def _write(b: Builder, c: Choices) -> list[str]:
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


FAMILY = Family(weight=2.5, write=_write)
