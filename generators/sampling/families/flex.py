"""Whoever calls flex_attention, with modifications of scores and masks."""

from generators.program.case import Values
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values


def _write(b: Builder, c: Choices) -> list[str]:
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


FAMILY = Family(weight=2.0, write=_write)
