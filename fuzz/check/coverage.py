"""Which graph rewrites Inductor applied, by name. The only module that touches the pattern matcher's entries."""

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
        self._originals: list[tuple[type, Any]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far, sorted."""
        return tuple(sorted(self._names))

    def __enter__(self) -> "Fired":
        for kind in ("ReplacementPatternEntry", "GraphPatternEntry", "LoweringPatternEntry"):
            entry = getattr(_matcher, kind, None)
            if entry is not None:
                self._originals.append((entry, entry.apply))
                entry.apply = self._noting(entry.apply)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._originals:
            entry, apply = self._originals.pop()
            entry.apply = apply

    def _noting(self, apply: Any) -> Any:
        def noted(entry: Any, *args: Any, **kwargs: Any) -> Any:
            self._names.add(_name(entry))
            return apply(entry, *args, **kwargs)

        return noted


def _name(entry: Any) -> str:
    name = getattr(entry, "pattern_name", None)
    if name:
        return str(name)
    handler = getattr(entry, "handler", None)
    return str(getattr(handler, "__name__", None) or type(entry.pattern).__name__)
