"""Which graph rewrites Inductor applied, by name. The only module that touches the pattern matcher's entries."""

import sys
from types import TracebackType
from typing import Any

try:
    import torch._inductor.pattern_matcher as _matcher
except ImportError:  # a torch without Inductor: nothing fires
    _matcher = None  # type: ignore[assignment]


class Fired:
    """While entered, collects the names of the rewrites that were applied.

    A replacement gives its pattern's name ("_sfdp_pattern_5_inference"), any other rewrite its handler's
    ("mul_softmax_pattern").
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._originals: list[tuple[Any, Any]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far, sorted."""
        return tuple(sorted(self._names))

    def __enter__(self) -> None:
        for kind in ("ReplacementPatternEntry", "GraphPatternEntry", "LoweringPatternEntry"):
            entry = getattr(_matcher, kind, None)
            if entry is not None:
                self._originals.append((entry, entry.apply))
                entry.apply = self._noting(entry.apply)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._originals:
            entry, apply = self._originals.pop()
            entry.apply = apply

    def _noting(self, apply: Any) -> Any:
        def noted(entry: Any, *args: Any, **kwargs: Any) -> Any:
            self._names.add(_name(entry))
            return apply(entry, *args, **kwargs)

        return noted


def attention_patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the rewrites that make a fused attention of a spelled-out one."""
    return tuple(name for name in names if "sfdp" in name)


def _name(entry: Any) -> str:
    name = getattr(entry, "pattern_name", None) or _serialized_name(entry.pattern)
    if name:
        return str(name)
    handler = getattr(entry, "handler", None)
    return str(getattr(handler, "__name__", None) or type(entry.pattern).__name__)


def _serialized_name(pattern: Any) -> str | None:
    # Before torch 2.12 entries don't know their names: find the module that defines the pattern.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch._inductor.fx_passes.serialized_patterns."):
            for name, value in vars(module).items():
                if value is pattern:
                    return name
    return None
