"""A random case from a seed and an index: a bare attention, or a whole module around one."""

from generators.attention import attend
from generators.blocks import block_module
from generators.builder import Builder
from generators.case import Case
from generators.choices import Choices
from generators.dimensions import draw_dims
from generators.families import FAMILIES
from generators.heads import head_inputs
from generators.merging import merge_heads
from generators.noise import disturb

BARE = 0.8
"""The share of cases that are an attention alone: they are twice as fast to judge as whole modules."""
TRAINING = 0.25
DYNAMIC = 0.02
"""The share with dynamic shapes, which take ten times as long to compile."""


def sample(seed: int, index: int) -> Case:
    """Case number `index` of the campaign with this seed: the same on every machine."""
    c = Choices(f"{seed}:{index}")
    family = c.weighted({name: weight for name, (weight, _) in FAMILIES.items()})
    c.habits = FAMILIES[family][1]
    c.wildness = c.weighted({0.02: 2.0, 0.08: 5.0, 0.2: 2.0, 0.5: 1.0})
    dtype = c.weighted({"float32": 5.0, "bfloat16": 2.5, "float16": 2.5})
    b = Builder(draw_dims(c), dtype, "training" if c.chance(TRAINING) else "inference")
    returns = _bare(b, c) if c.chance(BARE) else block_module(b, c)
    return b.case(returns, dynamic=c.chance(DYNAMIC))


def _bare(b: Builder, c: Choices) -> list[str]:
    noise = c.wildness / 5
    attended = attend(b, c, head_inputs(b, c), noise)
    output = attended.output
    if c.chance(0.3):
        output = merge_heads(b, c, output)
    output = disturb(b, c, output, noise)
    returns = c.structure("returns", {"output": 7.0, "keys": 1.5, "some": 1.5})
    if returns == "keys":
        return [output, attended.keys, attended.values]
    return [output, *(c.subset(attended.extras, 0.5) if returns == "some" else [])]
