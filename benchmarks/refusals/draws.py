"""Counts what turns candidates away while programs are drawn."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from benchmarks.refusals.places import HOME, all_places
from generators.errors import CaseError
from generators.reasons import Reason
from generators.sampling import sample


@dataclass
class Counts:
    """How many candidates were turned away, and in how many of the drawn programs, by reason or obstacle."""

    drawn: int = 0
    candidates: Counter[str] = field(default_factory=Counter)
    programs: Counter[str] = field(default_factory=Counter)

    def as_data(self) -> dict[str, Any]:
        rows = {name: [count, self.programs[name]] for name, count in sorted(self.candidates.items())}
        return {"drawn": self.drawn, "rows": rows}


def count_refusals(draw: Callable[[int], object], number: int) -> Counts:
    """Calls `draw(index)` for as many indices, and counts the CaseErrors and obstacles meanwhile."""
    counts, seen = Counts(number), set[str]()

    def note(name: str) -> None:
        counts.candidates[name] += 1
        seen.add(name)

    with _watch_errors(lambda reason: note(reason.name)), _watch_obstacles(note):
        for index in range(number):
            seen.clear()
            draw(index)
            counts.programs.update(seen)
    return counts


@contextmanager
def _watch_errors(note: Callable[[Reason], None]) -> Iterator[None]:
    places = {(str(HOME / one.path), line): one for one in all_places() for line in range(one.first, one.last + 1)}
    original = CaseError.__init__

    def init(self: CaseError, text: str, mistake: str = "", reason: Reason | None = None) -> None:
        original(self, text, mistake, reason)
        frame = sys._getframe(1)  # noqa: SLF001 - Python's own
        while frame.f_back is not None and frame.f_code.co_filename == str(HOME / "errors.py"):
            frame = frame.f_back
        # Errors that add words to another one have no place.
        if place := places.get((frame.f_code.co_filename, frame.f_lineno)):
            note(reason or place.reasons[0])

    with mock.patch.object(CaseError, "__init__", init):
        yield


@contextmanager
def _watch_obstacles(note: Callable[[str], None]) -> Iterator[None]:
    original: Callable[..., str] = vars(sample)["find_obstacle"]

    def find(*args: Any) -> str:
        if found := original(*args):
            note(f"obstacle {found}")
        return found

    with mock.patch.object(sample, "find_obstacle", find):
        yield
