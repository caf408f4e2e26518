"""Which case comes next: a random one, or a variant of one that an attention rewrite matched."""

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.entry import case_files, load
from fuzz.protocol import Result, SubjectResult
from fuzz.run_store import Results
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.case import Case
from generators.program.features import features
from generators.sampling.choices import Choices
from generators.sampling.families import FAMILIES
from generators.sampling.sample import ANY, SampleSpec
from generators.sampling.variants import Variant, make_variants, variant_of

WITH = " with "
"""Between a pattern and what is unusual about a case that it matched."""

ATTENTION = "_sfdp_pattern_"
"""Begins the names of attention patterns."""
_SINGLES, _TRIES = 1.0, 2.0
"""What every way is credited with before its first try."""
_MIN_PRICE, _MAX_PRICE = 0.4, 2.5
"""Prices are noisy: they are clipped to these multiples of the mean of all ways."""

ENGINES = ("guided", "random", "atheris")

SOURCES = {"random": 0.5, "variant": 0.5}
"""Where a case comes from, before the search learns what reaches something new."""

_FAMILIES = {name: family.weight for name, family in FAMILIES.items()}
_ATTEMPTS = 8
"""So often is something else looked for in the place of a case that was judged already."""

TRIES = 2
"""A pattern is tried so often in each form it was not seen in; more tries are left to chance."""


def reached(case: Case, results: Iterable[SubjectResult]) -> frozenset[str]:
    """What a case reached in compilers, by name: rewrites, what else workers report, and everything unusual about the
    case that an attention rewrite matched nevertheless, where rewrites go wrong."""
    results = tuple(results)
    fired = {name for result in results for name in result.fired}
    patterns = {pattern_of(name) for name in fired if name.startswith(ATTENTION)}
    unusual = features(case) if patterns else ()
    names = {f"rewrite {name}" for name in fired}.union(*(result.reached for result in results))
    return frozenset(names | {f"{pattern}{WITH}{word}" for pattern in patterns for word in unusual})


def pattern_of(name: str) -> str:
    """`_sfdp_pattern_5` of `_sfdp_pattern_5_half_inference`."""
    return "_".join(name.split("_")[:4])


class Coverage:
    """What the cases of a campaign reached so far. Threads share it."""

    def __init__(self, results: Results) -> None:
        self._lock = threading.Lock()
        self._names = set(results.reached())

    def add(self, names: frozenset[str]) -> frozenset[str]:
        """Note what a case reached. Gives what is new of it, for which the case belongs in the store's queue."""
        with self._lock:
            fresh = names - self._names
            self._names |= names
            return fresh


class SourceBandit:
    """Chooses among ways of making cases those that are likely to reach something new. `known`: what was reached
    before. Not for several threads at once.

    Of all that n tries reached, let m things have been reached once: m / n estimates the chance that the next try
    reaches something new (Good and Turing; I. J. Good, "The population frequencies of species", Biometrika 40, 1953).
    It falls by itself as a way is exhausted, and a way not tried yet counts as promising.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._tries: Counter[str] = Counter()
        self._singles: Counter[str] = Counter()
        self._prices: dict[str, float] = defaultdict(float)
        self._finders: dict[str, tuple[str, ...]] = dict.fromkeys(known, ())
        """By thing: the ways of the try that reached it, for as long as no other has."""

    def credit(self, ways: Iterable[str], names: Iterable[str], price: float) -> None:
        """Note a try: the ways taken together in it, all that it reached, and what it cost."""
        ways = tuple(ways)
        for way in ways:
            self._tries[way] += 1
            self._prices[way] += price
        for name in names:
            if name in self._finders:
                self._singles.subtract(self._finders[name])
            else:
                self._singles.update(ways)
            self._finders[name] = () if name in self._finders else ways

    def weights(self, own: Mapping[str, float]) -> dict[str, float]:
        """The weights of ways: each one's own, times the chance that it reaches something new, for its price."""
        tries = self._tries.total()
        mean = sum(self._prices.values()) / tries if tries else 0.0
        return {way: weight * self._chance(way) / self._price(way, mean) for way, weight in own.items()}

    def _chance(self, way: str) -> float:
        return (self._singles[way] + _SINGLES) / (self._tries[way] + _TRIES)

    def _price(self, way: str, mean: float) -> float:
        tries = self._tries[way]
        return min(_MAX_PRICE, max(_MIN_PRICE, self._prices[way] / tries / mean)) if tries and mean else 1.0


class VariantQueue:
    """Cases that wait to be judged. Not for several threads at once. `seed`: the campaign's."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._waiting: dict[tuple[str, ...], deque[tuple[str, Case]]] = defaultdict(deque)
        """By what they change."""
        self._seen: set[tuple[str, Variant]] = set()
        self._planned: Counter[tuple[str, Variant]] = Counter()

    def plan(self, case: Case, patterns: Collection[str], new: Collection[str]) -> None:
        """Note that these patterns matched a case, and queue its variants for those that are new in its form."""
        own = variant_of(case)
        self._seen.update((pattern, own) for pattern in patterns)
        for other in make_variants(case, Choices(f"{self._seed}:{case.id}:siblings")) if new else ():
            form = variant_of(other)
            wanted = [p for p in sorted(new) if (p, form) not in self._seen and self._planned[p, form] < TRIES]
            if wanted:
                self._planned.update((pattern, form) for pattern in wanted)
                self._waiting[own.changed(form)].append((wanted[0], other))

    def take(self, c: Choices, changes: SourceBandit) -> tuple[Case, tuple[str, ...]] | None:
        """A variant and what it changes, preferring changes that are likely to reach something new. None when none
        waits."""
        while waiting := [change for change, cases in self._waiting.items() if cases]:
            words = changes.weights({word: 1.0 for change in waiting for word in change})
            change = c.weighted({change: math.prod(words[word] for word in change) for change in waiting})
            pattern, case = self._waiting[change].popleft()
            if (pattern, variant_of(case)) not in self._seen:
                return case, change
        return None


Draw = Callable[[int, SampleSpec], Case]
"""Gives case number `index` of the seed, of a form where one is given."""


def seed_cases(directory: Path) -> tuple[Case, ...]:
    """The cases of all case files under a directory, shortest first; no known bugs, which are found already. Raises
    `UserError` for a directory that is not there and for files that hold no case."""
    if not directory.is_dir():
        raise UserError(f"--seeds {directory}: no such directory")
    entries = [load(file) for file in case_files(directory)]
    cases = {entry.case.id: entry.case for entry in entries if entry.expect is None or entry.expect.status != "known"}
    return tuple(sorted(cases.values(), key=lambda case: (len(case.ops), case.id)))


class Next(NamedTuple):
    """The case to judge next, where it comes from ("seed", or one of `SOURCES`), and by which family or change of
    form."""

    case: Case
    source: str
    ways: tuple[str, ...] = ()

    @property
    def is_targeted(self) -> bool:
        """Whether it is there for something that it may reach (`Schedule.subjects_for`)."""
        return self.source in ("seed", "variant")


class Random:
    """Every case is random, from the seed: the same on every machine. libFuzzer draws its own; with
    `coverage`, what reaches something new is kept."""

    def __init__(self, draw: Draw, coverage: Coverage | None = None) -> None:
        self._draw, self._coverage = draw, coverage

    def choose(self, index: int) -> Next:
        """Case number `index` of the seed."""
        return Next(self._draw(index, ANY), "random")

    def record(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = reached(case, result.results)
        return names, self._coverage is not None and bool(self._coverage.add(names))


class Guided:
    """`seeds` first; then random cases, and variants of cases that an attention rewrite matched for the first time: the
    other forms that rewrites tell apart. Families and forms are chosen as they are likely to reach something new. Cases
    that were judged before are skipped."""

    def __init__(self, draw: Draw, seed: int, seeds: Sequence[Case], results: Results) -> None:
        self._draw, self._seed, self._seeds = draw, seed, seeds
        self._coverage = Coverage(results)
        self._lock = threading.Lock()
        known = [name for name in results.reached() if _is_followed(name)]
        self._sources, self._families, self._changes = (SourceBandit(known) for _ in range(3))
        self._origins: dict[str, Next] = {}
        self._given = {*results.cases(), *(case.id for case in seeds)}
        self._variants = VariantQueue(seed)
        for case, names in results.queue():
            self._variants.plan(case, _list_patterns(names), _list_patterns(names))

    def choose(self, index: int) -> Next:
        """Seed file number `index`, and after them what the search chooses, which depends on all that was reached."""
        if index < len(self._seeds):
            return Next(self._seeds[index], "seed")
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            for _ in range(_ATTEMPTS):
                chosen = self._make(index, c)
                if chosen.case.id not in self._given:
                    break
            self._given.add(chosen.case.id)
            self._origins[chosen.case.id] = chosen
        return chosen

    def _make(self, index: int, c: Choices) -> Next:
        source = c.weighted(self._sources.weights(SOURCES))
        if source == "variant" and (found := self._variants.take(c, self._changes)):
            return Next(found[0], source, found[1])
        family = c.weighted(self._families.weights(_FAMILIES))
        return Next(self._draw(index, SampleSpec(family)), "random", (family,))

    def record(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = reached(case, result.results)
        news = self._coverage.add(names)
        with self._lock:
            origin = self._origins.pop(case.id, None)
            if origin is not None:
                self._credit(case, origin, result)
            self._variants.plan(case, _list_patterns(names), _list_patterns(news))
        return names, bool(news)

    def _credit(self, case: Case, origin: Next, result: Result) -> None:
        # Whether a case meets an expensive subject, and so what that reaches, is chance.
        cheap = [one for one in result.results if get_spec(one.subject).is_proxy] or result.results[:1]
        names = list(filter(_is_followed, reached(case, cheap)))
        price = sum(one.seconds for one in cheap)
        self._sources.credit([origin.source], names, price)
        ways = self._families if origin.source == "random" else self._changes
        ways.credit(origin.ways, names, price)


Search = Random | Guided
"""Threads share it. `record` is called once for every case, before its verdicts are stored."""


def _is_followed(name: str) -> bool:
    """Whether a thing reached is a decision of the compiler: operations are the program's, kernels are sizes."""
    return WITH not in name and not name.startswith(("op ", "kernels "))


def _list_patterns(names: Iterable[str]) -> frozenset[str]:
    rewrites = (name.removeprefix("rewrite ") for name in names if name.startswith("rewrite "))
    return frozenset(pattern_of(name) for name in rewrites if name.startswith(ATTENTION))
