"""Which of torch's modules report the lines they run to libFuzzer. The only module that says what is instrumented."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

import atheris

FOLLOWED = (
    "torch._decomp.decompositions",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes",
    "torch._inductor.lowering",
    "torch._inductor.pattern_matcher",
)
"""Modules, and packages with all that is in them. All of torch._inductor and torch._dynamo would take a minute and a
half to instrument, and most of what is in them runs for every case."""

_LEFT_OUT = ("torch._inductor.fx_passes.serialized_patterns",)
"""Patterns as data: they are loaded, not run."""

_LATE = (
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
)
"""What Inductor imports at its first compile: those counters would come after libFuzzer has counted its own."""


def follow() -> None:
    """Import what is followed, instrumented; to be called before torch is imported."""
    sys.meta_path.insert(0, _Finder())
    for name in _LATE:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _within(fullname, FOLLOWED) or _within(fullname, _LEFT_OUT):
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
