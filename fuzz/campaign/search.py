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
"""Separates a pattern from an unusual feature of a case that it matched."""

ATTENTION = "_sfdp_pattern_"
"""Begins the names of attention patterns."""
_SINGLES, _TRIES = 1.0, 2.0
"""What every arm is credited with before its first try."""
_MIN_COST, _MAX_COST = 0.4, 2.5
"""Costs are noisy: they are clipped to these multiples of the mean of all arms."""

ENGINES = ("guided", "random", "atheris")

SOURCES = {"random": 0.5, "variant": 0.5}
"""Where a case comes from, before the search learns what reaches something new."""

_FAMILIES = {name: family.weight for name, family in FAMILIES.items()}
_ATTEMPTS = 8
"""How often another case is tried in place of one that was judged before."""

TRIES = 2
"""Variants that are queued for each pattern and form in which it was not seen to match."""


def list_reached(case: Case, results: Iterable[SubjectResult]) -> frozenset[str]:
    """What a case reached in compilers, by name: rewrites, what else workers report, and each unusual feature of a case
    that an attention pattern matched, since rewrites of unusual cases go wrong."""
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
    """Everything that the cases of a campaign have reached. Threads share it."""

    def __init__(self, results: Results) -> None:
        self._lock = threading.Lock()
        self._names = set(results.reached())

    def add(self, names: frozenset[str]) -> frozenset[str]:
        """Note what a case reached, and return what is new. A case with anything new is queued in the store."""
        with self._lock:
            fresh = names - self._names
            self._names |= names
            return fresh


class SourceBandit:
    """A bandit whose arms are ways to make cases; it prefers those likely to reach something new. `known`: what was
    reached before. Not for several threads at once.

    If m things were reached exactly once in n tries, m / n estimates the chance that the next try reaches something
    new (Good and Turing; I. J. Good, "The population frequencies of species", Biometrika 40, 1953).
    It falls as an arm is exhausted. An arm that was not tried yet counts as promising.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._tries: Counter[str] = Counter()
        self._singles: Counter[str] = Counter()
        self._costs: dict[str, float] = defaultdict(float)
        self._finders: dict[str, tuple[str, ...]] = dict.fromkeys(known, ())
        """By name: the arms of the only try that reached it; () once a second try has."""

    def credit(self, arms: Iterable[str], names: Iterable[str], cost: float) -> None:
        """Note a try: the arms used together, what it reached, and its cost."""
        arms = tuple(arms)
        for arm in arms:
            self._tries[arm] += 1
            self._costs[arm] += cost
        for name in names:
            if name in self._finders:
                self._singles.subtract(self._finders[name])
            else:
                self._singles.update(arms)
            self._finders[name] = () if name in self._finders else arms

    def weights(self, own: Mapping[str, float]) -> dict[str, float]:
        """The weight of each arm: its own, times the chance that it reaches something new, over its relative cost."""
        tries = self._tries.total()
        mean = sum(self._costs.values()) / tries if tries else 0.0
        return {arm: weight * self._chance(arm) / self._relative_cost(arm, mean) for arm, weight in own.items()}

    def _chance(self, arm: str) -> float:
        return (self._singles[arm] + _SINGLES) / (self._tries[arm] + _TRIES)

    def _relative_cost(self, arm: str, mean: float) -> float:
        tries = self._tries[arm]
        return min(_MAX_COST, max(_MIN_COST, self._costs[arm] / tries / mean)) if tries and mean else 1.0


class VariantQueue:
    """Variants that wait to be judged. Not for several threads at once. `seed`: the campaign's."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._waiting: dict[tuple[str, ...], deque[tuple[str, Case]]] = defaultdict(deque)
        """By what the variants change."""
        self._seen: set[tuple[str, Variant]] = set()
        self._planned: Counter[tuple[str, Variant]] = Counter()

    def plan(self, case: Case, patterns: Collection[str], new: Collection[str]) -> None:
        """Note that these patterns matched a case. Queue its variants for those among them that are new."""
        own = variant_of(case)
        self._seen.update((pattern, own) for pattern in patterns)
        for other in make_variants(case, Choices(f"{self._seed}:{case.id}:siblings")) if new else ():
            form = variant_of(other)
            wanted = [p for p in sorted(new) if (p, form) not in self._seen and self._planned[p, form] < TRIES]
            if wanted:
                self._planned.update((pattern, form) for pattern in wanted)
                self._waiting[own.changed(form)].append((wanted[0], other))

    def take(self, c: Choices, changes: SourceBandit) -> tuple[Case, tuple[str, ...]] | None:
        """A variant and what it changes, or None. Changes that are likely to reach something new are preferred."""
        while waiting := [change for change, cases in self._waiting.items() if cases]:
            words = changes.weights({word: 1.0 for change in waiting for word in change})
            change = c.weighted({change: math.prod(words[word] for word in change) for change in waiting})
            pattern, case = self._waiting[change].popleft()
            if (pattern, variant_of(case)) not in self._seen:
                return case, change
        return None


Draw = Callable[[int, SampleSpec], Case]
"""Draws case number `index` of the seed, by a specification."""


def load_seeds(directory: Path) -> tuple[Case, ...]:
    """The cases under a directory, shortest first, without known bugs.

    Raises `UserError` for a missing directory and for files that hold no case.
    """
    if not directory.is_dir():
        raise UserError(f"--seeds {directory}: no such directory")
    entries = [load(file) for file in case_files(directory)]
    cases = {entry.case.id: entry.case for entry in entries if entry.expect is None or entry.expect.status != "known"}
    return tuple(sorted(cases.values(), key=lambda case: (len(case.ops), case.id)))


class ChosenCase(NamedTuple):
    """The case to judge next, its source ("seed", or one of `SOURCES`), and its arms: a family, or what changed."""

    case: Case
    source: str
    arms: tuple[str, ...] = ()

    @property
    def is_targeted(self) -> bool:
        """Whether it was chosen for something that it may reach (see `Schedule.subjects_for`)."""
        return self.source in ("seed", "variant")


class Random:
    """Every case is random, from the seed: the same on every machine. With `coverage` it notes what cases reached, for
    libFuzzer, which draws its own."""

    def __init__(self, draw: Draw, coverage: Coverage | None = None) -> None:
        self._draw, self._coverage = draw, coverage

    def choose(self, index: int) -> ChosenCase:
        """Case number `index` of the seed."""
        return ChosenCase(self._draw(index, ANY), "random")

    def record(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = list_reached(case, result.results)
        return names, self._coverage is not None and bool(self._coverage.add(names))


class Guided:
    """`seeds` first; then random cases, and variants of cases that an attention pattern matched for the first time.

    Families and variants that are likely to reach something new are preferred. Cases that were judged are skipped.
    """

    def __init__(self, draw: Draw, seed: int, seeds: Sequence[Case], results: Results) -> None:
        self._draw, self._seed, self._seeds = draw, seed, seeds
        self._coverage = Coverage(results)
        self._lock = threading.Lock()
        known = [name for name in results.reached() if _is_compiler_decision(name)]
        self._sources, self._families, self._changes = (SourceBandit(known) for _ in range(3))
        self._origins: dict[str, ChosenCase] = {}
        self._chosen = {*results.cases(), *(case.id for case in seeds)}
        self._variants = VariantQueue(seed)
        for case, names in results.queue():
            self._variants.plan(case, _list_patterns(names), _list_patterns(names))

    def choose(self, index: int) -> ChosenCase:
        """Seed file number `index`; after the last one the choice depends on everything that was reached."""
        if index < len(self._seeds):
            return ChosenCase(self._seeds[index], "seed")
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            for _ in range(_ATTEMPTS):
                chosen = self._make(index, c)
                if chosen.case.id not in self._chosen:
                    break
            self._chosen.add(chosen.case.id)
            self._origins[chosen.case.id] = chosen
        return chosen

    def _make(self, index: int, c: Choices) -> ChosenCase:
        source = c.weighted(self._sources.weights(SOURCES))
        if source == "variant" and (found := self._variants.take(c, self._changes)):
            return ChosenCase(found[0], source, found[1])
        family = c.weighted(self._families.weights(_FAMILIES))
        return ChosenCase(self._draw(index, SampleSpec(family)), "random", (family,))

    def record(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """What the case reached, and whether any of it is new."""
        names = list_reached(case, result.results)
        news = self._coverage.add(names)
        with self._lock:
            origin = self._origins.pop(case.id, None)
            if origin is not None:
                self._credit(case, origin, result)
            self._variants.plan(case, _list_patterns(names), _list_patterns(news))
        return names, bool(news)

    def _credit(self, case: Case, origin: ChosenCase, result: Result) -> None:
        # Whether a case meets an expensive subject, and so what that reaches, is chance.
        cheap = [one for one in result.results if get_spec(one.subject).is_proxy] or result.results[:1]
        names = list(filter(_is_compiler_decision, list_reached(case, cheap)))
        cost = sum(one.seconds for one in cheap)
        self._sources.credit([origin.source], names, cost)
        bandit = self._families if origin.source == "random" else self._changes
        bandit.credit(origin.arms, names, cost)


Search = Random | Guided
"""Threads share it. `record` is called once for every case, before its verdicts are stored."""


def _is_compiler_decision(name: str) -> bool:
    """Whether the compiler decides it; operations depend on the program alone, and kernels on sizes."""
    return WITH not in name and not name.startswith(("op ", "kernels "))


def _list_patterns(names: Iterable[str]) -> frozenset[str]:
    rewrites = (name.removeprefix("rewrite ") for name in names if name.startswith("rewrite "))
    return frozenset(pattern_of(name) for name in rewrites if name.startswith(ATTENTION))
