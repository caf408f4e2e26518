"""Counts what turns candidates away while programs are drawn."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any
from unittest import mock

from benchmarks.refusals.places import HOME, Place, all_places
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
    original = CaseError.__init__

    def init(self: CaseError, text: str, mistake: str = "", reason: Reason | None = None) -> None:
        original(self, text, mistake, reason)
        if place := _place_of(sys._getframe(1)):  # noqa: SLF001 - Python's own
            note(reason or place.reasons[0])

    with mock.patch.object(CaseError, "__init__", init):
        yield


def find_place(error: BaseException) -> Place | None:
    """The place that raised a CaseError, or the CaseError that it adds words to."""
    error = error.__context__ if isinstance(error.__context__, CaseError) else error
    traced = error.__traceback__
    while traced is not None and traced.tb_next is not None:
        traced = traced.tb_next
    return _place_of(traced.tb_frame) if traced is not None else None


def _place_of(raising: FrameType) -> Place | None:
    """The place of a frame that raises. None for errors that add words to another one."""
    frame = raising
    while frame.f_back is not None and frame.f_code.co_filename == str(HOME / "errors.py"):
        frame = frame.f_back
    return _places_by_line().get((frame.f_code.co_filename, frame.f_lineno))


@cache
def _places_by_line() -> dict[tuple[str, int], Place]:
    lines = ((one, range(one.first, one.last + 1)) for one in all_places())
    return {(str(HOME / one.path), line): one for one, numbers in lines for line in numbers}


@contextmanager
def _watch_obstacles(note: Callable[[str], None]) -> Iterator[None]:
    original: Callable[..., str] = vars(sample)["find_obstacle"]

    def find(*args: Any) -> str:
        if found := original(*args):
            note(f"obstacle {found}")
        return found

    with mock.patch.object(sample, "find_obstacle", find):
        yield
