"""From a suspicion to a minimal, confirmed failure: show it where users can see it, shrink, confirm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corpus.shrink import shrink
from fuzz.bug_identity import (
    PROCESS,
    SILENT,
    VALUES,
    attention_patterns,
    identity_of,
    indirectness,
    kind_of,
    list_wrong,
    share_values,
)
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.protocol.rewrites import CALL, is_explained
from fuzz.run_store import Outcome
from fuzz.subjects import INDUCTOR, compiler_of, get_spec, without_options
from generators.program.case import Case

CONFIRMATIONS = 3
"""A finding is shown this often, each time by a fresh worker."""

_PROCESS_PROBES = 40


Prober = Callable[..., SubjectResult | None]
"""Judges a case under a subject, in the worker at hand or (`fresh=True`) a new one; None when the case is rejected.
Raises `Stopped` when the campaign ends at once."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How work on a suspicion ended: the smallest confirmed case and its results.

    shown: the result of the public subject (of the internal one, for `INTERNAL`). proxy: the result of the cheapest
    subject that fails, with which later failures are compared.
    """

    outcome: Outcome
    case: Case
    shown: SubjectResult
    proxy: SubjectResult
    message: str = ""


def find_public_subject(subject: str, public: Sequence[str]) -> str | None:
    """The public subject that can show what `subject` shows; None when the campaign has none."""
    if get_spec(subject).public:
        return subject
    wanted = get_spec(subject)
    found = (name for name in public if compiler_of(name) == INDUCTOR)
    rows = ((name, get_spec(name)) for name in found)
    return next((name for name, row in rows if (row.random, row.options) == (wanted.random, wanted.options)), None)


def investigate(
    case: Case,
    suspect: SubjectResult,
    public: Sequence[str],
    judge: Prober,
    is_time_up: Callable[[], bool],
    *,
    attention_only: bool = False,
) -> Conclusion:
    """Work on one suspicion: `suspect` is what an internal or public subject made of `case`.

    `attention_only`: the subject is an attention function. A case without settings is judged under a subject without
    options.
    """
    probes = 0

    def probe(case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        nonlocal probes
        probes += 1
        return judge(case, subject if case.settings else without_options(subject), fresh=fresh)

    def is_spent() -> bool:
        # Every probe that fails like this costs a worker, or the whole time limit.
        return is_time_up() or (suspect.verdict in PROCESS and probes >= _PROCESS_PROBES)

    eager = suspect.verdict is Verdict.EAGER_SUSPECT
    chosen = EAGER if eager else find_public_subject(suspect.subject, public)
    subject, shown = chosen or suspect.subject, suspect
    if subject != suspect.subject:
        on_public = probe(case, subject)
        if on_public is None or not on_public.verdict.is_finding:
            said = "rejects the case" if on_public is None else f"says {on_public.verdict}"
            return Conclusion(Outcome.INTERNAL_ONLY, case, suspect, suspect, f"{subject} {said}")
        shown = on_public
        if eager or kind_of(shown.verdict) != kind_of(suspect.verdict):
            # Users meet another failure than the internal subject saw: work on that one. Eager needs no compiler.
            suspect = shown
    if shown.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT) and shown.dynamo_same and not attention_only:
        return Conclusion(Outcome.WITHIN_SAME, case, shown, suspect, "torch._dynamo.utils.same accepts it")

    trajectory = shrink_failure(case, suspect, probe, is_spent, attention_only=attention_only and not eager)
    confirmed = _find_smallest_confirmed(trajectory, shown, subject, probe, attention_only=attention_only)
    if confirmed is None:
        return Conclusion(Outcome.UNCONFIRMED, case, shown, suspect, f"{subject} does not repeat it in fresh workers")
    minimal, shown = confirmed
    proxy = shown if suspect.subject == subject else probe(minimal, suspect.subject)
    if proxy is None or not proxy.verdict.is_finding:
        proxy = shown
    return Conclusion(Outcome.FINDING if chosen else Outcome.INTERNAL, minimal, shown, proxy)


def is_same_failure(
    result: SubjectResult | None, wanted: SubjectResult, *, exact: bool, attention_only: bool = False
) -> bool:
    """Whether `result` shows the failure that `wanted` shows.

    Both must have the same verdict (without `exact`, one of the same kind) and identity, such as the message of an
    exception or the operation of eager. Where `torch._dynamo.utils.same` rejects `wanted` it must reject `result`; it
    is not asked about attention functions (`attention_only`). `result` must show the bug as plainly as `wanted`
    (`INDIRECT` in fuzz/bug_identity.py); calls of attention functions must share a wrong result. Results of one subject
    must also share the rewrites that are proven wrong or, where none is, an attention pattern that fired and is not
    proven right; without an error, no other may be proven wrong then.
    """
    if result is None or not result.verdict.is_finding:
        return False
    if (
        wanted.verdict in VALUES
        and wanted.dynamo_same is False
        and result.dynamo_same is not False
        and not attention_only
    ):
        return False
    if indirectness(result.failure) > indirectness(wanted.failure):
        return False
    if attention_only and not share_values(list_wrong(result.failure), list_wrong(wanted.failure)):
        return False
    if result.verdict is not wanted.verdict and (exact or kind_of(result.verdict) != kind_of(wanted.verdict)):
        return False
    is_eager = wanted.verdict is Verdict.EAGER_SUSPECT
    patterns = attention_patterns(() if is_eager else wanted.applied_rewrites) - attention_patterns(
        wanted.right_rewrites
    )
    # A call that no single change makes right may show several bugs, of which any will do.
    measured = tuple(one for one in wanted.wrong_rewrites if one.pattern != CALL or one.right)
    proven = attention_patterns(tuple(one.pattern for one in result.wrong_rewrites))
    is_of_one = without_options(result.subject) == without_options(wanted.subject)
    if measured and is_of_one:
        # What is proven wrong stays wrong for the same operands.
        if not (result.wrong_rewrites and is_explained(result.wrong_rewrites, measured)):
            return False
    elif is_of_one:
        lacks_pattern = patterns and not patterns & attention_patterns(result.applied_rewrites)
        if lacks_pattern or (wanted.verdict in SILENT and not proven <= patterns):
            return False
    # Where a process is lost is chance, and what breaks a GPU is not.
    return wanted.verdict in PROCESS - {Verdict.DEVICE_ERROR} or identity_of(result) == identity_of(wanted)


def shrink_failure(
    case: Case,
    suspect: SubjectResult,
    probe: Prober,
    is_spent: Callable[[], bool],
    accept: Callable[[Case, SubjectResult], None] = lambda case, result: None,
    *,
    attention_only: bool,
) -> list[Case]:
    """Ever simpler cases that fail under the subject of `suspect` as that does; `accept` gets each with its result."""
    least = indirectness(suspect.failure)

    def still_fails(candidate: Case) -> bool:
        nonlocal least
        result = probe(candidate, suspect.subject)
        if result is None or indirectness(result.failure) > least:
            return False
        if not is_same_failure(result, suspect, exact=True, attention_only=attention_only):
            return False
        least = indirectness(result.failure)
        accept(candidate, result)
        return True

    return shrink(case, still_fails, is_spent, attention_only=attention_only)


def _find_smallest_confirmed(
    trajectory: list[Case], wanted: SubjectResult, subject: str, probe: Prober, *, attention_only: bool
) -> tuple[Case, SubjectResult] | None:
    """The last case of the trajectory that confirms; found by bisection when the very last does not."""
    best: tuple[Case, SubjectResult] | None = None
    low, high = 0, len(trajectory) - 1
    middle = high
    while low <= high:
        result = _confirm(trajectory[middle], wanted, subject, probe, attention_only=attention_only)
        if result is None:
            high = middle - 1
        else:
            best = (trajectory[middle], result)
            low = middle + 1
        middle = (low + high) // 2
    return best


def _confirm(
    case: Case, wanted: SubjectResult, subject: str, probe: Prober, *, attention_only: bool
) -> SubjectResult | None:
    """What the last of `CONFIRMATIONS` fresh workers says, if all say the same; else None."""
    first: SubjectResult | None = None
    for _ in range(CONFIRMATIONS):
        result = probe(case, subject, fresh=True)
        if result is None or not is_same_failure(
            result, first or wanted, exact=first is not None, attention_only=attention_only
        ):
            return None
        first = result
    return first


class Baseline:
    """The prober of `--against`: a failure counts only if it is a regression from a second interpreter.

    That is, if the other interpreter passes the case or fails in another way: what raised there and is silently wrong
    here is a regression. `probe` asks the campaign's interpreter, `other` the second one, whose torch is `torch`.
    """

    def __init__(self, probe: Prober, other: Prober, torch: str) -> None:
        self._probe, self._other, self._torch = probe, other, torch
        self._answers: dict[tuple[str, str], SubjectResult | None] = {}

    def __call__(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """The result of the campaign's interpreter; None if it fails and the other fails alike or can't judge it."""
        result = self._probe(case, subject, fresh=fresh)
        if result is None or not result.verdict.is_finding or _is_worse(result, self._ask(case, subject, fresh=fresh)):
            return result
        return None

    def conclude_early(self, case: Case, suspect: SubjectResult) -> Conclusion | None:
        """The conclusion that this failure is no regression; None if it may be one and is worth work."""
        subject = EAGER if suspect.verdict is Verdict.EAGER_SUSPECT else suspect.subject
        is_worse = _is_worse(suspect, self._ask(case, subject, fresh=False))
        return None if is_worse else self._set_aside(case, suspect, subject)

    def revise(self, conclusion: Conclusion) -> Conclusion:
        """The conclusion; or that the failure is no regression, if work failed because of the other interpreter."""
        if conclusion.outcome not in (Outcome.INTERNAL_ONLY, Outcome.UNCONFIRMED):
            return conclusion
        # The last subject asked about is the one that users meet.
        asked = [subject for case_id, subject in self._answers if case_id == conclusion.case.id]
        if not asked or _is_worse(conclusion.shown, self._answers[conclusion.case.id, asked[-1]]):
            return conclusion
        return self._set_aside(conclusion.case, conclusion.shown, asked[-1])

    def verdicts_of(self, conclusion: Conclusion) -> dict[str, str]:
        """The verdict of the other torch version on the minimal case, for its file."""
        there = self._answers.get((conclusion.case.id, conclusion.shown.subject))
        return {} if there is None else {self._torch: str(there.verdict)}

    def _ask(self, case: Case, subject: str, *, fresh: bool) -> SubjectResult | None:
        there = self._other(case, subject, fresh=fresh)
        self._answers[case.id, subject] = there
        return there

    def _set_aside(self, case: Case, shown: SubjectResult, subject: str) -> Conclusion:
        there = self._answers[case.id, subject]
        if there is not None and there.verdict.is_finding and there.verdict not in PROCESS:
            said = ": ".join(filter(None, [f"{there.verdict} under {subject}", describe(there)]))
            return Conclusion(Outcome.IN_BOTH, case, shown, shown, f"also in torch {self._torch}: {said}")
        why = "eager refuses the case" if there is None else f"{subject}: {describe(there) or there.verdict}"
        return Conclusion(Outcome.NOT_COMPARED, case, shown, shown, f"torch {self._torch} can't judge it: {why}")


def _is_worse(here: SubjectResult, there: SubjectResult | None) -> bool:
    """Whether a failure is a regression from `there`. A process that was lost there says nothing of the case."""
    if there is None or there.verdict is Verdict.SKIPPED or there.verdict in PROCESS:
        return False
    return not there.verdict.is_finding or kind_of(there.verdict) != kind_of(here.verdict)
