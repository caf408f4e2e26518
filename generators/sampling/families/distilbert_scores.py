"""DistilBERT as it was first: scores divided instead of the query."""

from generators.sampling.families import distilbert
from generators.sampling.families.family import Family

FAMILY = Family(weight=3.0, habits={**distilbert.FAMILY.habits, "scale.place": "scores"})
