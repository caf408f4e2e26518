"""Kinds of values: the list in the docs is whole, and masks become simpler part by part."""

import re
from dataclasses import replace
from pathlib import Path

from corpus.passes.program import simplify_inputs
from generators.program.case import Case, Input, Op, Values
from generators.program.kept_places import PATTERNS, SPELLINGS, split_kind
from generators.program.sizes import Size
from generators.program.values import DISTRIBUTIONS

MASK = Input("mask", tuple(Size.of(size) for size in ("B", 1, "S", "S")), "float32", Values("normal"))
CASE = Case((("B", 2), ("S", 9)), (MASK,), (Op("out", "softmax", ("mask",)),), ("out",))


def fill(kind: str, scale: float = 1.0, param: float = 0.0, dtype: str = "float32") -> Case:
    return replace(CASE, inputs=(replace(MASK, values=Values(kind, scale=scale, param=param), dtype=dtype),))


def test_the_docs_list_all_kinds() -> None:
    named = set(
        re.findall(r"`([a-z_]+)`", Path("docs/cases.md").read_text().partition("## Values")[2].partition("## ")[0])
    )
    parts = {part.name for pattern in PATTERNS.values() for part in pattern.parts}
    others = {name for name in DISTRIBUTIONS if split_kind(name) is None}
    assert parts | others | {spelling.suffix for spelling in SPELLINGS} - {""} <= named


def test_a_mask_loses_its_parts_and_keeps_its_spelling() -> None:
    case = fill("window+left_key_padding_mask", -1e4, 3.0)
    simpler = {item.values for one in simplify_inputs(case) for item in one.inputs}
    assert simpler >= {Values(kind, 0, -1e4, param=3.0) for kind in ("window_mask", "left_key_padding_mask")}
