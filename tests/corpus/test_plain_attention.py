"""Attention respelled plainly from its contract."""

from dataclasses import replace
from typing import Any

import pytest

from corpus.passes.contracts import Plain, spell_plain
from generators.program.attention_options import OPTIONS, Contract, Form
from generators.program.case import Input, Values
from generators.program.sizes import Size

DIMS = (("B", 2), ("H", 3), ("S", 4), ("D", 5))
SHAPES = {Form.MASK: "SS", Form.BIAS: "SS", Form.PER_HEAD: "H"}
VALUES: dict[Form, Any] = {Form.CORNER: "top_left", Form.WINDOW: (1, 1), Form.NUMBER: 2.0, Form.PROBABILITY: 0.5}


def tensor(name: str, shape: str, dtype: str = "float32") -> Input:
    values = Values("random" if dtype == "bool" else "normal")
    return Input(name, tuple(map(Size.of, shape)), dtype, values)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_operations(name: str) -> None:
    bare = Plain(DIMS, {role: tensor(role, "BHSD") for role in "qkv"}, Contract("q", "k", "v", "out"))
    form = OPTIONS[name].form
    if OPTIONS[name].is_tensor:
        added = tensor(name, SHAPES[form], "bool" if form is Form.MASK else "float32")
        with_option = replace(bare, inputs={**bare.inputs, name: added})
    else:
        with_option = bare.change(**{name: VALUES[form]})
    without, spelled = spell_plain(bare), spell_plain(with_option)
    assert without is not None
    assert spelled is not None
    assert len(spelled.ops) > len(without.ops)
    assert getattr(spelled.contracts[0], name) != OPTIONS[name].absent
