"""Chooses the next case: a seed, a random case, or a variant of a case in which an attention pattern was applied.
Attention functions get random cases that they probably accept."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.entry import load_directory
from fuzz.known_bugs import KnownBugs
from fuzz.protocol import CoverageItem, CoverageKind, Result, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import NotTaken, Refusal
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.program.emit import list_unplain
from generators.sampling.choices import Choices
from generators.sampling.sample import Limits
from generators.sampling.variants import Variant, make_variants, variant_of

PATTERN_PREFIX = "_sfdp_pattern_"
"""The prefix of the names of attention patterns."""
ENGINES = ("guided", "random", "atheris")

VARIANT_PROBABILITY = 0.5
"""The probability that the next case of a guided search is a waiting variant."""
TRIES = 2
"""Variants that are queued for each pattern and each form (`Variant`) in which the pattern has not matched."""

EXPLORED = 0.05
"""Share of cases for which refusals are ignored, since a refusal may have been blamed on the wrong word of a call."""
REPEATED = 0.2
"""Share of cases for which known bugs are not avoided, since a known bug may hide another bug."""
_BAR, _PATIENCE = 0.75, 600
"""A call is taken if its worth reaches the bar. The bar falls from _BAR to 0 while _PATIENCE calls are passed over."""
_KNOWN = 0.1
"""The factor on the worth of a call that probably shows a known bug."""

_HOPELESS = 0.25
"""A case is drawn again if no compiler is likelier than this to take it: one of its words was refused thrice, and never
taken."""
_DRAWS = 4
"""How often a case is drawn at most. Each draw takes a millisecond or two, and a refused case the time of a check."""
_APART = 1 << 40
"""The distance between the numbers of these draws. No campaign has as many cases."""

Items = frozenset[CoverageItem]
DrawCase = Callable[..., Case]
"""Draws case number `index` of the seed, for attention functions within `limits`."""


class VariantQueue:
    """Variants that wait to be judged. Threads must not share it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._waiting: list[tuple[str, Case]] = []
        self._matched: set[tuple[str, Variant]] = set()
        self._planned: Counter[tuple[str, Variant]] = Counter()

    def plan(self, case: Case, patterns: Collection[str], new: Collection[str]) -> None:
        """Note that these patterns matched a case, and queue its variants for the new patterns."""
        own = variant_of(case)
        self._matched.update((pattern, own) for pattern in patterns)
        for other in make_variants(case, Choices(f"{self._seed}:{case.id}:siblings")) if new else ():
            form = variant_of(other)
            wanted = [p for p in sorted(new) if (p, form) not in self._matched and self._planned[p, form] < TRIES]
            if wanted:
                self._planned.update((pattern, form) for pattern in wanted)
                self._waiting.append((wanted[0], other))

    def take(self, c: Choices) -> Case | None:
        """A random queued variant in a form that is still unmatched, or None."""
        while self._waiting:
            pattern, case = self._waiting.pop(c.below(len(self._waiting)))
            if (pattern, variant_of(case)) not in self._matched:
                return case
        return None


def load_seeds(directory: Path) -> tuple[Case, ...]:
    """The cases under a directory, shortest first, without known bugs. Raises `UserError`."""
    if not directory.is_dir():
        raise UserError(f"--seeds {directory}: no such directory")
    entries = load_directory(directory).values()
    cases = {entry.case.id: entry.case for entry in entries if entry.expect is None or entry.expect.status != "known"}
    return tuple(sorted(cases.values(), key=lambda case: (len(case.ops), case.id)))


class ChosenCase(NamedTuple):
    """The case to judge next."""

    case: Case
    source: str  # "seed", "variant" or "random"

    @property
    def is_targeted(self) -> bool:
        """Whether the case was chosen for something that it may reach (see `Schedule.subjects_for`)."""
        return self.source != "random"


class Random:
    """Every case is random, from the seed: the same on every machine. Threads share it.

    covered: the coverage of earlier sessions.
    """

    def __init__(self, draw: DrawCase, covered: Iterable[CoverageItem] = ()) -> None:
        self._draw, self._covered = draw, set(covered)
        self._lock = threading.Lock()

    def choose(self, index: int) -> ChosenCase:
        return ChosenCase(self._draw(index), "random")

    def record(self, case: Case, result: Result) -> tuple[Items, bool]:
        """The coverage of a case, and whether some of it is new. If so, the store queues the case.

        Called once for every case, before its verdicts are stored.
        """
        items = frozenset(item for one in result.results for item in one.whole_coverage)
        with self._lock:
            return items, bool(self._add(case, items))

    def _add(self, _case: Case, items: Items) -> Items:
        """Note the coverage of a case, and return the new part of it."""
        news = items - self._covered
        self._covered |= news
        return news


class Guided(Random):
    """Takes cases from three sources:

    - seeds, every second case while there are any
    - variants of cases that an attention pattern matched for the first time
    - random cases

    A case is chosen once. Seeds show which programs match patterns. `load_seeds` leaves out seeds with known bugs.
    """

    def __init__(self, draw: DrawCase, seed: int, seeds: Sequence[Case], results: Results) -> None:
        super().__init__(draw, results.count_coverage())
        self._seed, self._seeds = seed, seeds
        self._is_judged = results.is_judged
        self._chosen = {case.id for case in seeds}
        self._variants = VariantQueue(seed)
        for case, items in results.queue():
            self._variants.plan(case, _list_patterns(items), _list_patterns(items))

    def choose(self, index: int) -> ChosenCase:
        """For an even number the next seed, while seeds last; else by chance a variant or random case."""
        if index % 2 == 0 and index // 2 < len(self._seeds):
            return ChosenCase(self._seeds[index // 2], "seed")
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            while c.chance(VARIANT_PROBABILITY) and (case := self._variants.take(c)) is not None:
                if self._claim(case):
                    return ChosenCase(case, "variant")
        return super().choose(index)

    def _claim(self, case: Case) -> bool:
        is_new = case.id not in self._chosen and not self._is_judged(case.id)
        self._chosen.add(case.id)
        return is_new

    def _add(self, case: Case, items: Items) -> Items:
        news = super()._add(case, items)
        self._variants.plan(case, _list_patterns(items), _list_patterns(news))
        return news


def _list_patterns(items: Items) -> frozenset[str]:
    rewrites = (item.name for item in items if item.kind is CoverageKind.REWRITE)
    # `_sfdp_pattern_5` of `_sfdp_pattern_5_half_inference`.
    return frozenset("_".join(name.split("_")[:4]) for name in rewrites if name.startswith(PATTERN_PREFIX))


class _Learning(Random):
    """Random cases that some subject probably takes. Learns from all cases which words (properties) of a case make a
    refusal likely."""

    def __init__(self, draw: DrawCase, seed: int, covered: Iterable[CoverageItem] = ()) -> None:
        super().__init__(draw, covered)
        self._seed = seed
        self._met, self._taken = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        """How many cases of a subject have a word, and how many of these cases it took. Each case has the word ""."""

    def _list_words(self, case: Case) -> set[str]:
        raise NotImplementedError

    def _predict_acceptance(self, subject: str, words: Iterable[str]) -> float:
        """The estimated acceptance of a case, relative to that of all cases: the lowest acceptance of its words."""
        rates = [(1 + self._taken[subject, word]) / (1 + self._met[subject, word]) for word in ("", *words)]
        return min(rates) / rates[0]

    def record(self, case: Case, result: Result) -> tuple[Items, bool]:
        """Learn from refusals, and return as `Random.record` does."""
        words = {"", *self._list_words(case)}
        with self._lock:
            for one in result.results:
                is_refused = isinstance(one.failure, NotTaken) and one.failure.why is Refusal.UNSUPPORTED
                if is_refused or one.verdict is not Verdict.SKIPPED:
                    self._met.update((one.subject, word) for word in words)
                    self._taken.update((one.subject, word) for word in words if not is_refused)
        return super().record(case, result)


class CompilerSearch(_Learning):
    """Random cases without operations that all compilers refuse again and again. Words are the operations of a case,
    each alone and with the dtype of an input, and its regions."""

    def __init__(
        self, draw: DrawCase, seed: int, subjects: Sequence[str], covered: Iterable[CoverageItem] = ()
    ) -> None:
        super().__init__(draw, seed, covered)
        self._subjects = subjects

    def choose(self, index: int) -> ChosenCase:
        """Case number `index`, or another if that is hopeless. Until refusals it only depends on the seed."""
        is_free = Choices(f"{self._seed}:{index}:compilers").chance(EXPLORED)
        for number in range(1 if is_free else _DRAWS):
            case = self._draw(index + number * _APART)
            with self._lock:
                words = self._list_words(case)
                if max(self._predict_acceptance(name, words) for name in self._subjects) > _HOPELESS:
                    break
        return ChosenCase(case, "random")

    def _list_words(self, case: Case) -> set[str]:
        kinds = {op.kind for op in case.ops} | {*list_unplain(case)}
        return kinds | {f"{kind} {item.dtype}" for kind in kinds for item in case.inputs}


class AttentionSearch(_Learning):
    """Random cases that some function probably takes, and that avoid its known bugs.

    capabilities: the calls that each function takes, by subject.
    """

    def __init__(
        self, draw: DrawCase, seed: int, capabilities: Mapping[str, Capabilities], known: KnownBugs, device: str
    ) -> None:
        super().__init__(draw, seed)
        self._capabilities, self._known, self._device = capabilities, known, device
        dims = [one.head_dims for one in capabilities.values()]
        self._head_dims = () if None in dims else tuple(dict.fromkeys(dim for some in dims for dim in some or ()))

    def choose(self, index: int) -> ChosenCase:
        """Case number `index`. Until the first refusal or finding it only depends on the seed and the capabilities."""
        c = Choices(f"{self._seed}:{index}:attention")
        explores, repeats = c.chance(EXPLORED), c.chance(REPEATED)
        passed = itertools.count(1)

        def accepts(call: AttentionCall) -> bool:
            worth = self._rate(call, explores=explores, repeats=repeats)
            return worth > 0 and worth >= _BAR * (1 - next(passed) / _PATIENCE)

        with self._lock:
            return ChosenCase(self._draw(index, Limits(accepts, self._head_dims)), "random")

    def _rate(self, call: AttentionCall, *, explores: bool, repeats: bool) -> float:
        best, words = 0.0, call.words
        for subject, declared in self._capabilities.items():
            if not declared.find_refusal(
                call.dtype, call.shapes, call.options, training=call.training, device=self._device
            ):
                taken = 1.0 if explores else self._predict_acceptance(subject, words)
                best = max(best, taken if repeats or not self._known.expects(subject, call) else taken * _KNOWN)
        return best

    def _list_words(self, case: Case) -> set[str]:
        return set[str]().union(*(call.words for call in list_calls(case)))
