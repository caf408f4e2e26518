"""A torch with mistakes planted, in every process that has this directory on PYTHONPATH: a worker, a script, the
bisector.

    ATTNFUZZ_PLANT=scale_dropped PYTHONPATH=benchmarks/planted_torch python ...

Python imports this module when it starts. Several names may be given, with commas between them.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch_defects import COMPILER_DEFECTS, FUNCTIONS, HARMLESS, OPERATIONS, RELUS, REPLACEMENTS, Change


def _replace(module: Any, path: str, make: Change) -> None:
    owner, _, name = path.rpartition(".")
    home = getattr(module, owner) if owner else module
    setattr(home, name, make(getattr(home, name)))


def _in_fuse_attention(module: Any) -> None:
    for plant in REPLACEMENTS.keys() & PLANTS:
        _plant(module, *REPLACEMENTS[plant])


def _plant(module: Any, number: int, change: Change) -> None:
    name = f"_sfdp_replacement_{number}"
    original = getattr(module, name)

    @functools.wraps(original)
    def wrong(*args: Any, **options: Any) -> Any:
        sdpa = module._scaled_dot_product_attention  # noqa: SLF001
        module._scaled_dot_product_attention = functools.partial(change, sdpa)  # noqa: SLF001
        try:
            return original(*args, **options)
        finally:
            module._scaled_dot_product_attention = sdpa  # noqa: SLF001

    setattr(module, name, wrong)


def _in_operations(module: Any) -> None:
    for plant in OPERATIONS.keys() & PLANTS:
        module.planted = module.torch.library.Library("aten", "IMPL")  # lasts as long as the module
        module.planted.impl(*(OPERATIONS[plant][part] for part in (0, 2, 1)))


def _in_config(module: Any) -> None:
    for plant in RELUS.keys() & PLANTS:
        module.cpp.inject_relu_bug_TESTING_ONLY = RELUS[plant]
        module.triton.inject_relu_bug_TESTING_ONLY = RELUS[plant]


class _After(importlib.abc.MetaPathFinder):
    """Makes changes in one module as soon as it is imported."""

    def __init__(self, name: str, changes: Sequence[Callable[[Any], None]]) -> None:
        self.name, self.changes = name, changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of that module, whose loader changes it."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            for change in self.changes:
                change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


PLANTS = set(filter(None, os.environ.get("ATTNFUZZ_PLANT", "").split(",")))
_MODULES = (
    ("torch._inductor.fx_passes.fuse_attention", _in_fuse_attention, REPLACEMENTS),
    ("torch._inductor.config", _in_config, RELUS),
    ("torch._meta_registrations", _in_operations, OPERATIONS),
)
_changes: dict[str, list[Callable[[Any], None]]] = {
    name: [change] for name, change, known in _MODULES if known.keys() & PLANTS
}
_IN_FUNCTIONS = {**FUNCTIONS, **HARMLESS, **{name: row[:3] for name, row in COMPILER_DEFECTS.items()}}
for _plant_name in _IN_FUNCTIONS.keys() & PLANTS:
    _name, _path, _make = _IN_FUNCTIONS[_plant_name]
    _changes.setdefault(_name, []).append(functools.partial(_replace, path=_path, make=_make))
sys.meta_path[:0] = [_After(name, changes) for name, changes in _changes.items()]
_ALL = (*REPLACEMENTS, *RELUS, *OPERATIONS, *_IN_FUNCTIONS)
if PLANTS.difference(_ALL):
    sys.exit(f"ATTNFUZZ_PLANT={os.environ['ATTNFUZZ_PLANT']}: {', '.join(_ALL)}")
