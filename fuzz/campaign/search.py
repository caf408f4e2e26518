"""Which case comes next: drawn from the seed, or made of one that reached something rare."""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from corpus.entry import case_files, load
from fuzz.campaign.queue import ATTENTION, WITH, Queue, pattern_of, reached
from fuzz.campaign.results import Results
from fuzz.campaign.yields import Yields
from fuzz.protocol import Result
from generators.case import Case
from generators.choices import Choices
from generators.errors import UserError
from generators.mutate import WEIGHTS, mutate, siblings
from generators.mutations.forms import Variant, variant
from generators.sample import FORMS, Form

ENGINES = ("guided", "random", "atheris")

SOURCES = {"drawn": 0.7, "mutated": 0.3}
"""Where a case comes from that is no sibling, before the search learns what brings something new."""

SIBLINGS = 0.5
"""The share of cases that siblings of a case may take, while there are any."""

TRIES = 2
"""A pattern is tried so often in each form it was not seen in; more tries are left to chance."""

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

    def judged(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What `case` reached, and whether it is worth keeping. Called once for every case, before its verdicts are stored."""


class Random:
    """Every case is drawn from the seed: the same on every machine. libFuzzer's slots draw their own."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def case(self, index: int) -> Case:
        """Case number `index` of the seed."""
        return self._draw(index)

    def judged(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached; nothing is kept."""
        return reached(case, result.results), False


class Guided:
    """`seeds` first; then cases drawn from the seed, mutations of cases that reached something rare, and, of each case that an
    attention rewrite took for the first time, the other forms that rewrites tell apart. Forms to draw and edits to mutate
    with are taken as they are likely to bring something new."""

    def __init__(self, draw: Draw, seed: int, seeds: Sequence[Case], results: Results) -> None:
        self._draw, self._seed, self._seeds = draw, seed, seeds
        self.queue = Queue(results)
        self._lock = threading.Lock()
        known = [name for name in results.reached() if WITH not in name]
        self._forms: Yields[Form] = Yields(known)
        self._edits: Yields[str] = Yields(known)
        self._sources: Yields[str] = Yields(known)
        self._made: dict[str, Form | tuple[str, ...]] = {}
        self._siblings: deque[tuple[str, Case]] = deque()
        self._fired: set[tuple[str, Variant]] = set()
        self._planned: Counter[tuple[str, Variant]] = Counter()
        for case, names in results.queue():
            self._plan(case, names, names)

    def case(self, index: int) -> Case:
        """Seed file number `index`, or what comes to mind after them; a queue that grew since gives another case."""
        if index < len(self._seeds):
            return self._seeds[index]
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            sibling = self._next_sibling() if c.chance(SIBLINGS) else None
            if sibling is not None:
                return sibling
            source = c.weighted(self._sources.weights(SOURCES))
            forms, edits = self._forms.weights(FORMS), self._edits.weights(WEIGHTS)
        parent = self.queue.pick(c) if source == "mutated" else None
        if parent is None:
            form = c.weighted(forms)
            return self._noted(self._draw(index, form), form)
        mutant = mutate(parent, c, self.queue.some(c, _TO_SPLICE), edits)
        return self._noted(mutant.case, mutant.edits)

    def judged(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = reached(case, result.results)
        news = self.queue.new(case, names)
        with self._lock:
            # Every case meets the first subject, the others by chance.
            price = result.results[0].seconds if result.results else result.seconds
            self._credit(self._made.pop(case.id, ()), [name for name in names if WITH not in name], price)
            self._plan(case, names, news)
        return names, bool(news)

    def _credit(self, made: Form | tuple[str, ...], names: Sequence[str], price: float) -> None:
        drawn, edits = ((made,), ()) if isinstance(made, Form) else ((), tuple(dict.fromkeys(made)))
        self._forms.credit(drawn, names, price)
        self._edits.credit(edits, names, price)
        self._sources.credit(["drawn"] if drawn else ["mutated"] if edits else [], names, price)

    def _plan(self, case: Case, names: Iterable[str], news: Iterable[str]) -> None:
        """Line up the siblings of a case that an attention rewrite took for the first time, in forms its pattern was not seen in."""
        self._fired.update((pattern, variant(case)) for pattern in _patterns(names))
        for pattern in _patterns(news):
            for sibling in siblings(case, Choices(f"{self._seed}:{case.id}:siblings")):
                form = (pattern, variant(sibling))
                if form not in self._fired and self._planned[form] < TRIES:
                    self._planned[form] += 1
                    self._siblings.append((pattern, sibling))

    def _next_sibling(self) -> Case | None:
        while self._siblings:
            pattern, case = self._siblings.popleft()
            if (pattern, variant(case)) not in self._fired:
                return case
        return None

    def _noted(self, case: Case, made: Form | tuple[str, ...]) -> Case:
        with self._lock:
            self._made[case.id] = made
        return case


def _patterns(names: Iterable[str]) -> frozenset[str]:
    """The attention patterns among things reached, whatever their form."""
    rewrites = (name.removeprefix("rewrite ") for name in names if name.startswith("rewrite "))
    return frozenset(pattern_of(name) for name in rewrites if name.startswith(ATTENTION))
