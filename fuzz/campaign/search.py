"""Which case comes next: a random one, or a variant of one that an attention rewrite matched. Attention functions get
random cases that they take, and that may show new bugs."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.entry import load_directory
from fuzz.campaign.known_bugs import KnownBugs
from fuzz.protocol import CoverageItem, CoverageKind, Result, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import NotTaken, Refusal
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.sampling.choices import Choices
from generators.sampling.sample import Limits
from generators.sampling.variants import Variant, make_variants, variant_of

ATTENTION = "_sfdp_pattern_"
"""Begins the names of attention patterns."""
ENGINES = ("guided", "random", "atheris")

VARIANTS = 0.5
"""The share of variants among the cases of a guided search while any wait."""

SHARED = 0.5
"""The share of cases of other campaigns among the cases of a guided search while any wait."""

TRIES = 2
"""Variants that are queued for each pattern and form in which it was not seen to match."""

EXPLORED, REPEATED = 0.05, 0.2
"""The shares of cases for which it does not matter what was refused so far, and which bugs are known: a word may be
blamed wrongly, and behind one bug there may be another."""
_BAR, _PATIENCE = 0.75, 200
"""A call is taken that is worth the bar, which falls the faster the more were passed over, slowly for so many."""
_KNOWN = 0.1
"""What a call is worth that meets a known bug."""


class VariantQueue:
    """Variants that wait to be judged. Not for several threads at once. `seed`: the campaign's."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._waiting: list[tuple[str, Case]] = []
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
                self._waiting.append((wanted[0], other))

    def take(self, c: Choices) -> Case | None:
        """A random one of the variants, or None."""
        while self._waiting:
            pattern, case = self._waiting.pop(c.below(len(self._waiting)))
            if (pattern, variant_of(case)) not in self._seen:
                return case
        return None


Items = frozenset[CoverageItem]

Draw = Callable[..., Case]
"""Draws case number `index` of the seed, for attention functions within `limits`."""


def load_seeds(directory: Path) -> tuple[Case, ...]:
    """The cases under a directory, shortest first, without known bugs.

    Raises `UserError` for a missing directory and for files that hold no case.
    """
    if not directory.is_dir():
        raise UserError(f"--seeds {directory}: no such directory")
    entries = load_directory(directory).values()
    cases = {entry.case.id: entry.case for entry in entries if entry.expect is None or entry.expect.status != "known"}
    return tuple(sorted(cases.values(), key=lambda case: (len(case.ops), case.id)))


class ChosenCase(NamedTuple):
    """The case to judge next, and its source: "seed", "shared" (of another campaign), "random" or "variant"."""

    case: Case
    source: str

    @property
    def is_targeted(self) -> bool:
        """Whether it was chosen for something that it may reach (see `Schedule.subjects_for`)."""
        return self.source != "random"


class Random:
    """Every case is random, from the seed: the same on every machine. With `results` it notes what cases reached, for
    libFuzzer, which draws its own. Threads share it."""

    def __init__(self, draw: Draw, results: Results | None = None) -> None:
        self._draw = draw
        self._covered = None if results is None else set(results.count_coverage())
        self._lock = threading.Lock()

    def choose(self, index: int) -> ChosenCase:
        """Case number `index` of the seed."""
        return ChosenCase(self._draw(index), "random")

    def record(self, case: Case, result: Result) -> tuple[Items, bool]:
        """What the case reached, and whether any of it is new, so that it is queued in the store.

        Called once for every case, before its verdicts are stored.
        """
        items = frozenset(item for one in result.results for item in one.whole_coverage)
        with self._lock:
            return items, bool(self._add(case, items))

    def _add(self, _case: Case, items: Items) -> Items:
        """Note what a case reached, and return what is new."""
        news = Items() if self._covered is None else items - self._covered
        if self._covered is not None:
            self._covered |= news
        return news


class Guided(Random):
    """`seeds`, by turns with the others while there are any; cases that `take_shared` gives; random cases, and variants
    of cases that an attention pattern matched for the first time, except those that were judged.

    Seeds teach what patterns take, and fail themselves in no torch so far: first findings come from the others.
    """

    def __init__(
        self,
        draw: Draw,
        seed: int,
        seeds: Sequence[Case],
        results: Results,
        take_shared: Callable[[], Case | None] | None = None,
    ) -> None:
        super().__init__(draw, results)
        self._seed, self._seeds, self._take_shared = seed, seeds, take_shared or (lambda: None)
        self._is_judged = results.is_judged
        self._chosen = {case.id for case in seeds}
        self._variants = VariantQueue(seed)
        for case, items in results.queue():
            self._variants.plan(case, _list_patterns(items), _list_patterns(items))

    def choose(self, index: int) -> ChosenCase:
        """A seed for every even number while there are any; else the choice depends on everything that was reached."""
        if index % 2 == 0 and index // 2 < len(self._seeds):
            return ChosenCase(self._seeds[index // 2], "seed")
        c = Choices(f"{self._seed}:{index}:guided")
        with self._lock:
            while c.chance(SHARED) and (case := self._take_shared()) is not None:
                if self._is_new(case):
                    return ChosenCase(case, "shared")
            while c.chance(VARIANTS) and (case := self._variants.take(c)) is not None:
                if self._is_new(case):
                    return ChosenCase(case, "variant")
        return super().choose(index)

    def _is_new(self, case: Case) -> bool:
        """Whether the case is chosen for the first time."""
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
    return frozenset("_".join(name.split("_")[:4]) for name in rewrites if name.startswith(ATTENTION))


class Refusals:
    """What a function refuses, learned from the words of the cases it was given."""

    def __init__(self) -> None:
        self._met, self._taken = Counter[str](), Counter[str]()
        """How many cases have a word, and how many of those were taken. All have ""."""

    def add(self, words: frozenset[str], *, is_taken: bool) -> None:
        """Note a case that was taken, or refused."""
        self._met.update({"", *words})
        self._taken.update({"", *words} if is_taken else ())

    def predict_acceptance(self, words: Iterable[str]) -> float:
        """How likely a call is taken, against one of which nothing is known: as likely as its worst word."""
        rates = [(1 + self._taken[word]) / (1 + self._met[word]) for word in ("", *words)]
        return min(rates) / rates[0]


class AttentionSearch(Random):
    """Random cases that some function is likely to take, first those that avoid its known bugs.
    `capabilities`: what each takes."""

    def __init__(
        self, draw: Draw, seed: int, capabilities: Mapping[str, Capabilities], known: KnownBugs, device: str
    ) -> None:
        super().__init__(draw)
        self._seed, self._capabilities, self._known, self._device = seed, capabilities, known, device
        self._refusals = {subject: Refusals() for subject in capabilities}
        dims = [one.head_dims for one in capabilities.values()]
        self._head_dims = () if None in dims else tuple(dict.fromkeys(dim for some in dims for dim in some or ()))

    def choose(self, index: int) -> ChosenCase:
        """Case number `index`: of one seed and capabilities always the same until one is refused or a bug is found."""
        c = Choices(f"{self._seed}:{index}:attention")
        explores, repeats = c.chance(EXPLORED), c.chance(REPEATED)
        with self._lock:
            return ChosenCase(self._draw_within(index, explores=explores, repeats=repeats), "random")

    def _draw_within(self, index: int, **how: bool) -> Case:
        passed = 0

        def accepts(call: AttentionCall) -> bool:
            nonlocal passed
            passed += 1
            bar: float = _BAR ** (1 + (passed / _PATIENCE) ** 2)
            return self._rate(call, **how) >= bar

        return self._draw(index, Limits(accepts, self._head_dims))

    def _rate(self, call: AttentionCall, *, explores: bool, repeats: bool) -> float:
        """What a call is worth, from 0 to 1, to the function to which it is worth most."""
        best, words = 0.0, call.words
        for subject, declared in self._capabilities.items():
            if not declared.find_refusal(
                call.dtype, call.shapes, call.options, training=call.training, device=self._device
            ):
                taken = 1.0 if explores else self._refusals[subject].predict_acceptance(words)
                best = max(best, taken if repeats or not self._known.expects(subject, call) else taken * _KNOWN)
        return best

    def record(self, case: Case, result: Result) -> tuple[Items, bool]:
        """Learn what was refused."""
        words = frozenset[str]().union(*(call.words for call in list_calls(case)))
        with self._lock:
            for one in result.results:
                is_refused = isinstance(one.failure, NotTaken) and one.failure.why is Refusal.UNSUPPORTED
                if is_refused or one.verdict is not Verdict.SKIPPED:
                    self._refusals[one.subject].add(words, is_taken=not is_refused)
        return super().record(case, result)
