"""Attention without habits: every decision by its own weight."""

from generators.sampling.families.family import Family

FAMILY = Family(weight=40.0)
