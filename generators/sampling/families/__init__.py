"""How models in the wild spell attention, a file each: a module here that defines FAMILY is a family of its name."""

import importlib
import pkgutil

from generators.sampling.families.family import Families, Family

__all__ = ["FAMILIES", "Families", "Family"]


def _all() -> Families:
    names = sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name != "family")
    return {name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in names}


FAMILIES: Families = _all()
