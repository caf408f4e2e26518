"""Whoever calls F.scaled_dot_product_attention."""

from generators.sampling.families.family import Family

FAMILY = Family(weight=5.0, habits={"fused": "sdpa"})
