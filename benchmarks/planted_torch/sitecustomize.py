"""A torch with mistakes planted, in every process that has this directory on PYTHONPATH: a worker, repro.py, the
bisector.

    ATTNFUZZ_PLANT=scale_dropped PYTHONPATH=benchmarks/planted_torch python ...

Python imports this module when it starts. Several names may be given, with commas between them.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Change = Callable[..., Any]


def _scale(sdpa: Any, *qkv: Any, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, "scale": change(options.get("scale"))})


def _option(sdpa: Any, *qkv: Any, name: str, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, name: change(options.get(name))})


#: By name: the pattern whose replacement is wrong, and what that calls in the place of F.scaled_dot_product_attention.
REPLACEMENTS: dict[str, tuple[int, Change]] = {
    "scale_dropped": (1, functools.partial(_scale, change=lambda scale: 1.0)),
    "scale_squared": (5, functools.partial(_scale, change=lambda scale: scale**2)),
    "mask_dropped": (14, functools.partial(_option, name="attn_mask", change=lambda mask: None)),
    "mask_negated": (15, functools.partial(_option, name="attn_mask", change=lambda mask: ~mask)),
    "causal_added": (11, functools.partial(_option, name="is_causal", change=lambda causal: True)),
    "queries_and_keys_swapped": (2, lambda sdpa, q, k, v, **options: sdpa(k, q, v, **options)),
    "heads_rolled": (9, lambda sdpa, q, k, v, **options: sdpa(q, k, v.roll(1, 1), **options)),
    "queries_reversed": (19, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).flip(-2)),
    "output_transposed": (23, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).transpose(1, 2)),
}

#: By name: what `torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY` is set to.
RELUS = {"relu_accuracy": "accuracy", "relu_compile_error": "compile_error", "relu_runtime_error": "runtime_error"}


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


def _in_config(module: Any) -> None:
    for plant in RELUS.keys() & PLANTS:
        module.cpp.inject_relu_bug_TESTING_ONLY = RELUS[plant]


class _After(importlib.abc.MetaPathFinder):
    """Changes one module as soon as it is imported."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

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
            self.change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


PLANTS = set(filter(None, os.environ.get("ATTNFUZZ_PLANT", "").split(",")))
_MODULES = (
    ("torch._inductor.fx_passes.fuse_attention", _in_fuse_attention, REPLACEMENTS),
    ("torch._inductor.config", _in_config, RELUS),
)
for _name, _change, _known in _MODULES:
    if _known.keys() & PLANTS:
        sys.meta_path.insert(0, _After(_name, _change))
if PLANTS - REPLACEMENTS.keys() - RELUS.keys():
    sys.exit(f"ATTNFUZZ_PLANT={os.environ['ATTNFUZZ_PLANT']}: choose from {', '.join([*REPLACEMENTS, *RELUS])}")
