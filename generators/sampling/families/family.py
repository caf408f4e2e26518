"""What a family of models is to the generator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from generators.sampling.builder import Builder
from generators.sampling.choices import Choices, Habits

Write = Callable[[Builder, Choices], list[str]]
"""Writes a program of a family: gives the names of the values it returns, the output first."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of one kind spell attention.

    weight: how often it is drawn beside the others. habits: the outcomes it is known by, of decisions the generator takes
    (the names given to `Choices.structure` and `Choices.detail`); the rest are anyone's. write: for what the generator
    does not write by itself, the whole program; `Builder.dims` has B, H, S, T, D and V, and may be given more or others.
    """

    weight: float
    habits: Habits = field(default_factory=dict)
    write: Write | None = None


Families = Mapping[str, Family]
