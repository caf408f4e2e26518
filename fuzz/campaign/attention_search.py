"""Cases for a campaign over attention functions alone: those that the functions take, and that may show new bugs."""

from collections import Counter
from collections.abc import Iterable, Mapping

from fuzz.campaign.known_bugs import KnownBugs
from fuzz.campaign.schedule import BLOCK
from fuzz.campaign.search import ChosenCase, Draw, Random
from fuzz.protocol import Result, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import NotTaken, Refusal
from generators.program.calls import AttentionCall, list_calls
from generators.program.case import Case
from generators.sampling.choices import Choices
from generators.sampling.sample import Limits

EXPLORED, REPEATED = 0.05, 0.2
"""The shares of cases for which it does not matter what was refused so far, and which bugs are known: a word may be
blamed wrongly, and behind one bug there may be another."""
_BAR, _PATIENCE = 0.75, 200
"""A call is taken that is worth the bar, which falls the faster the more were passed over, slowly for so many."""
_KNOWN = 0.1
"""What a call is worth that meets a known bug."""


class Refusals:
    """What a function refuses, learned from the words of the cases it was given."""

    def __init__(self) -> None:
        self._met, self._taken = Counter[str](), Counter[str]()
        """How many cases have a word, and how many of those were taken. All have ""."""

    def add(self, words: frozenset[str], *, is_taken: bool) -> None:
        """Note a case that was taken, or refused."""
        self._met.update({"", *words})
        self._taken.update({"", *words} if is_taken else ())

    def predict_taken(self, words: Iterable[str]) -> float:
        """How likely a call is taken, against one of which nothing is known: as likely as its worst word."""
        rates = [(1 + self._taken[word]) / (1 + self._met[word]) for word in ("", *words)]
        return min(rates) / rates[0]


class AttentionSearch(Random):
    """Random cases that some function is likely to take, first those that avoid its known bugs; on a GPU in blocks.
    `capabilities`: what each takes."""

    def __init__(
        self, draw: Draw, seed: int, capabilities: Mapping[str, Capabilities], known: KnownBugs, device: str
    ) -> None:
        super().__init__(draw)
        self._seed, self._capabilities, self._known, self._device = seed, capabilities, known, device
        self._refusals = {subject: Refusals() for subject in capabilities}
        self._blocks: dict[int, AttentionCall] = {}
        dims = [one.head_dims for one in capabilities.values()]
        self._head_dims = () if None in dims else tuple(dict.fromkeys(dim for some in dims for dim in some or ()))

    def choose(self, index: int) -> ChosenCase:
        """Case number `index`: of one seed and capabilities always the same until one is refused or a bug is found."""
        c = Choices(f"{self._seed}:{index}:attention")
        explores, repeats = c.chance(EXPLORED), c.chance(REPEATED)
        with self._lock:
            like = None if explores or self._device == "cpu" else self._find_call(index // BLOCK)
            return ChosenCase(self._draw_near(index, like, explores=explores, repeats=repeats), "random")

    def _find_call(self, block: int) -> AttentionCall:
        """A call with the kernels of a block; another one than before where that is worth little by now."""
        call = self._blocks.get(block)
        if call is None or self._rate(call) < _BAR / 2:
            call = self._blocks[block] = next(list_calls(self._draw_near(block * BLOCK)))
        return call

    def _draw_near(self, index: int, like: AttentionCall | None = None, **how: bool) -> Case:
        passed = 0

        def accepts(call: AttentionCall) -> bool:
            nonlocal passed
            passed += 1
            bar: float = _BAR ** (1 + (passed / _PATIENCE) ** 2)
            return self._rate(call, **how) >= bar

        return self._draw(index, Limits(accepts, self._head_dims, like))

    def _rate(self, call: AttentionCall, *, explores: bool = False, repeats: bool = False) -> float:
        """What a call is worth, from 0 to 1, to the function to which it is worth most."""
        best, words = 0.0, call.words
        for subject, declared in self._capabilities.items():
            if not declared.find_refusal(
                call.dtype, call.shapes, call.options, training=call.training, device=self._device
            ):
                taken = 1.0 if explores else self._refusals[subject].predict_taken(words)
                best = max(best, taken if repeats or not self._known.expects(subject, call) else taken * _KNOWN)
        return best

    def record(self, case: Case, result: Result) -> tuple[frozenset[str], bool]:
        """Learn what was refused."""
        words = frozenset[str]().union(*(call.words for call in list_calls(case)))
        with self._lock:
            for one in result.results:
                is_refused = isinstance(one.failure, NotTaken) and one.failure.why is Refusal.UNSUPPORTED
                if is_refused or one.verdict is not Verdict.SKIPPED:
                    self._refusals[one.subject].add(words, is_taken=not is_refused)
        return super().record(case, result)
