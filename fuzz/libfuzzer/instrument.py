"""Instruments those modules of torch whose line coverage libFuzzer follows."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

import atheris

INSTRUMENTED = (
    "torch._decomp.decompositions",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes",
    "torch._inductor.lowering",
    "torch._inductor.pattern_matcher",
)
"""Modules, and packages with everything in them. Instrumenting all of torch._inductor and torch._dynamo takes a minute
and a half, and most of it runs for every case."""

_LEFT_OUT = ("torch._inductor.fx_passes.serialized_patterns",)
"""Patterns as data: they are loaded, not run."""

_LATE = (
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
)
"""Modules that Inductor imports at its first compile, which is too late: libFuzzer counts its counters once."""


def instrument_imports() -> None:
    """Instrument these modules as they are imported. To be called before torch is imported."""
    sys.meta_path.insert(0, _Finder())
    for name in _LATE:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _within(fullname, INSTRUMENTED) or _within(fullname, _LEFT_OUT):
            return None
        # atheris.instrument_imports knows whole distributions only.
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        # Comparisons are of no use to a mutator that never sees their operands.
        return None if code is None else atheris.patch_code(code, trace_dataflow=False)


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)
