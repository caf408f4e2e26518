"""Mistral: Llama's layer, in which a query sees a window of the last keys."""

from generators.builder import Builder
from generators.choices import Choices
from generators.extras import Extras
from generators.families import llama
from generators.families.family import Family


def write(b: Builder, c: Choices) -> list[str]:
    """A layer with a sliding window."""
    return llama.layer(b, c, Extras(causal=c.pick(("top_left", "bottom_right")), window=True))


FAMILY = Family(weight=0.8, habits=llama.HABITS, write=write)
