"""Which keys a query sees by their places alone: causal masks from either corner, and sliding windows."""

from dataclasses import dataclass

from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices


@dataclass(frozen=True, slots=True)
class Pattern:
    """`causal` and `window` of a Contract. Without either, every key is seen."""

    causal: str | None = None
    window: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        """Whether it hides anything."""
        return self.causal is not None or self.window is not None


NO_PATTERN = Pattern()


def offset(pattern: Pattern, query: Size, key: Size) -> Size:
    """The place among the keys that query 0 stands at."""
    return key - query if pattern.causal == "bottom_right" else Size.of(0)


def spell_pattern(b: Builder, c: Choices, pattern: Pattern, query: Size, key: Size) -> str:
    """A boolean value, [S, T], True where the key is seen: from triangles of ones, or from differences of places."""
    start = offset(pattern, query, key)
    left, right = pattern.window or (-1, -1)
    right = 0 if pattern.causal else right
    if c.chance(0.5):
        seen = b.op("ones", to="keep", sizes=(query, key), dtype="bool")
        seen = b.op("tril", seen, diagonal=start + right) if right >= 0 else seen
        return b.op("triu", seen, diagonal=start - left) if left >= 0 else seen
    rows, columns = position_indices(b, query, key, start)
    if left < 0 and right == 0:
        return b.op("le", columns, rows, to="keep")
    distance = b.op("sub", rows, columns, to="distance")
    if left == right:
        return b.op("le", b.op("abs", distance), to="keep", other=left)
    near = b.op("le", distance, to="near", other=left) if left >= 0 else ""
    past = b.op("ge", distance, to="past", other=-right) if right >= 0 else ""
    return b.op("logical_and", past, near, to="keep") if near and past else near or past


def position_indices(b: Builder, query: Size, key: Size, start: Size, dtype: str = "int64") -> tuple[str, str]:
    """Where the queries stand, [S, 1], and the keys, [T]; query 0 stands at `start`."""
    rows = b.op("arange", to="rows", start=start, stop=start + query, dtype=dtype)
    return b.op("unsqueeze", rows, dim=-1), b.op("arange", to="columns", stop=key, dtype=dtype)
