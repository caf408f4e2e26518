"""DistilBERT as it was first: scores divided instead of the query."""

from generators.families import distilbert
from generators.families.family import Family

FAMILY = Family(weight=3.0, habits={**distilbert.FAMILY.habits, "scale.place": "scores"})
