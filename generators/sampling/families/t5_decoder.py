"""T5 that keeps what it will need again: no mask where a bias is all zeros, keys and values returned."""

from generators.sampling.families import t5
from generators.sampling.families.family import Family

FAMILY = Family(weight=4.0, habits={**t5.FAMILY.habits, "mask.kind": "none", "returns": "keys"})
