"""Which case comes next: drawn from the seed, or made of one that reached something rare."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from corpus.entry import case_files, load
from fuzz.campaign.queue import Queue, reached
from fuzz.campaign.results import Results
from fuzz.protocol import SubjectResult
from generators.case import Case
from generators.choices import Choices
from generators.errors import UserError
from generators.mutate import mutate

ENGINES = ("guided", "random", "atheris")

FRESH = 0.3
"""The share of cases of a guided search that are drawn from nothing: the rest are mutations of the queue's."""

_TO_SPLICE = 4

Draw = Callable[[int], Case]
"""Gives case number `index` of the seed."""


def seed_cases(directory: Path) -> tuple[Case, ...]:
    """The cases of all case files under a directory, shortest first; no known bugs, which are found already. Raises
    `UserError` for a directory that is not there and for files that hold no case."""
    if not directory.is_dir():
        raise UserError(f"--seeds {directory}: no such directory")
    entries = [load(file) for file in case_files(directory)]
    cases = {entry.case.id: entry.case for entry in entries if entry.expect is None or entry.expect.status != "known"}
    return tuple(sorted(cases.values(), key=lambda case: (len(case.ops), case.id)))


class Search(Protocol):
    """Threads of slots call it."""

    def case(self, index: int) -> Case:
        """The case to judge as number `index`."""

    def judged(self, case: Case, results: Sequence[SubjectResult]) -> tuple[frozenset[str], bool]:
        """What `case` reached, and whether it is worth keeping. Called once for every case, before its verdicts are stored."""


class Random:
    """Every case is drawn from the seed: the same on every machine. libFuzzer's slots draw their own."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def case(self, index: int) -> Case:
        """Case number `index` of the seed."""
        return self._draw(index)

    def judged(self, case: Case, results: Sequence[SubjectResult]) -> tuple[frozenset[str], bool]:
        """What the case reached; nothing is kept."""
        return reached(case, results), False


class Guided:
    """`seeds` first, then mutations of cases that reached something rare, among cases drawn from the seed."""

    def __init__(self, draw: Draw, seed: int, seeds: Sequence[Case], results: Results) -> None:
        self._draw, self._seed, self._seeds = draw, seed, seeds
        self.queue = Queue(results)

    def case(self, index: int) -> Case:
        """Seed file number `index`, or what comes to mind after them; a queue that grew since gives another case."""
        if index < len(self._seeds):
            return self._seeds[index]
        c = Choices(f"{self._seed}:{index}:guided")
        parent = None if c.chance(FRESH) else self.queue.pick(c)
        if parent is None:
            return self._draw(index)
        return mutate(parent, c, self.queue.some(c, _TO_SPLICE))

    def judged(self, case: Case, results: Sequence[SubjectResult]) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = reached(case, results)
        return names, self.queue.new(case, names)
