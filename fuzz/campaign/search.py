"""Which case comes next: drawn from the seed, or made of one that reached something rare."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from corpus.entry import case_files, load
from fuzz.campaign.queue import Queue, reached
from fuzz.campaign.results import Results
from fuzz.campaign.yields import Yields
from fuzz.protocol import SubjectResult
from generators.case import Case
from generators.choices import Choices
from generators.errors import UserError
from generators.mutate import WEIGHTS, mutate
from generators.sample import FORMS, Form

ENGINES = ("guided", "random", "atheris")

FRESH = 0.3
"""The share of cases of a guided search that are drawn from nothing: the rest are mutations of the queue's."""

_TO_SPLICE = 4

class Draw(Protocol):
    """Gives case number `index` of the seed, of a form where one is given."""

    def __call__(self, index: int, form: Form | None = None) -> Case:
        """One case."""



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
    """`seeds` first, then mutations of cases that reached something rare, among cases drawn from the seed. Forms to draw and
    edits to mutate with are taken as often as they brought something rare of late."""

    def __init__(self, draw: Draw, seed: int, seeds: Sequence[Case], results: Results) -> None:
        self._draw, self._seed, self._seeds = draw, seed, seeds
        self.queue = Queue(results)
        self._lock = threading.Lock()
        self._forms: Yields[Form] = Yields()
        self._edits: Yields[str] = Yields()
        self._sources: Yields[bool] = Yields()
        self._made: dict[str, Form | tuple[str, ...]] = {}

    def case(self, index: int) -> Case:
        """Seed file number `index`, or what comes to mind after them; a queue that grew since gives another case."""
        if index < len(self._seeds):
            return self._seeds[index]
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            fresh = c.weighted(self._sources.weights({True: FRESH, False: 1 - FRESH}))
        parent = None if fresh else self.queue.pick(c)
        if parent is None:
            with self._lock:
                form = c.weighted(self._forms.weights(FORMS))
            return self._noted(self._draw(index, form), form)
        with self._lock:
            weights = self._edits.weights(WEIGHTS)
        mutant = mutate(parent, c, self.queue.some(c, _TO_SPLICE), weights)
        return self._noted(mutant.case, mutant.edits)

    def judged(self, case: Case, results: Sequence[SubjectResult]) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = reached(case, results)
        new, rarity = self.queue.new(case, names)
        with self._lock:
            made = self._made.pop(case.id, None)
            if made is not None and results:
                # Every case meets the first subject, the others by chance.
                price = results[0].seconds
                self._sources.credit(isinstance(made, Form), rarity, price)
                if isinstance(made, Form):
                    self._forms.credit(made, rarity, price)
                else:
                    for edit in set(made):
                        self._edits.credit(edit, rarity, price)
        return names, new

    def _noted(self, case: Case, made: Form | tuple[str, ...]) -> Case:
        with self._lock:
            self._made[case.id] = made
        return case
