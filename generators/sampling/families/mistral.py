"""Mistral: Llama's layer, in which a query sees a window of the last keys."""

from generators.sampling.attention_features import Extras
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families import llama
from generators.sampling.families.family import Family


def write(b: Builder, c: Choices) -> list[str]:
    """A layer with a sliding window."""
    return llama.layer(b, c, Extras(causal=c.pick(("top_left", "bottom_right")), window=True))


FAMILY = Family(weight=0.8, habits=llama.HABITS, write=write)
