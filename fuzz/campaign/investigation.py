"""From a suspicion to a minimal, confirmed failure: show it under a public subject, shrink it, confirm it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from corpus.shrink import shrink
from fuzz.ask.evaluator import Judged
from fuzz.ask.question import Asker, ProcessState, Question
from fuzz.bug_identity import compare_outcome, indirectness, is_same_failure, kind_of
from fuzz.campaign.history import find_earlier, find_repeats
from fuzz.changed_rewrites import describe_changed, has_rewrites
from fuzz.events import SuspicionOutcome
from fuzz.experiments import Outcome
from fuzz.protocol import EAGER, Parted, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.subjects import INDUCTOR, compiler_of, get_spec, without_options
from fuzz.versions import spell_label
from generators.program.case import Case

CONFIRMATIONS = 3
"""The number of fresh workers that must repeat a finding."""
_PROCESS_PROBES = 40


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How an investigation ended: the smallest confirmed case and its results."""

    outcome: SuspicionOutcome
    case: Case
    shown: SubjectResult  # of the public subject; of the internal subject for `INTERNAL`
    cheapest_result: SubjectResult  # of the cheapest subject that fails; later failures are compared with it
    message: str = ""
    is_shrinking_cut: bool = False  # it ended before nothing simpler was left to try


def find_public_subject(subject: str, public: Sequence[str]) -> str | None:
    """The public subject that can show a failure of `subject`; None when the campaign has none."""
    if get_spec(subject).public:
        return subject
    wanted = get_spec(subject)
    found = (name for name in public if compiler_of(name) == INDUCTOR)
    rows = ((name, get_spec(name)) for name in found)
    return next((name for name, row in rows if (row.random, row.options) == (wanted.random, wanted.options)), None)


@dataclass(slots=True)
class Investigation:
    """The investigation of a suspicion: `suspect` is the result of an internal or public subject on `case`."""

    case: Case
    suspect: SubjectResult
    public: Sequence[str]  # the public subjects of the campaign
    asker: Asker  # with a baseline if `baseline_version` names it
    is_time_up: Callable[[], bool]
    attention_only: bool = False  # the subject is an attention function
    begin: Callable[[Sequence[Question]], None] = lambda questions: None  # called before questions; may raise
    baseline_version: str = ""  # of `--against`; with it, only regressions from that version count
    process_probes: float = _PROCESS_PROBES
    """Shrinking a case that kills its process ends after this many probes. Each costs a worker or a full timeout."""
    probes: int = 0
    history: Callable[[], Sequence[Judged]] = tuple  # the cases that the process of the suspicion judged before
    at_once: int = 1  # as many cases are judged at once where possible
    needs_history: bool = False  # fresh workers do not show the failure without earlier cases
    is_shrinking_cut: bool = False  # the last shrinking ended while candidates were left
    _baseline_results: dict[tuple[str, str], SubjectResult | None] = field(default_factory=dict)
    """The results of the baseline by case id and subject, in the order of the probes."""

    def run(self) -> Conclusion:
        """Show, shrink and confirm. Raises as `Asker.ask`."""
        case, suspect, is_eager = self.case, self.suspect, self.suspect.verdict is Verdict.EAGER_SUSPECT
        if self.baseline_version:
            asked = EAGER if is_eager else suspect.subject
            if not _is_worse(suspect, self._ask_baseline(Question(case, (asked,)))):
                return self._set_aside(case, suspect, asked)

        if not self.needs_history and not suspect.verdict.is_lost:
            alone = self.probe(case, suspect.subject, ProcessState.FRESH)
            if not is_same_failure(alone, suspect, exact=False, attention_only=self.attention_only):
                return self._try_history(suspect)

        # Show it under a subject that users know.
        chosen = EAGER if is_eager else find_public_subject(suspect.subject, self.public)
        subject, shown, trajectory = chosen or suspect.subject, suspect, list[Case]()
        if subject != suspect.subject:
            on_public = None
            if get_spec(suspect.subject).is_surrogate and not is_eager:
                # A small case is compiled in a tenth of the time.
                trajectory = self.shrink(suspect)
                on_public = self.probe(trajectory[-1], subject)
            if not trajectory or (len(trajectory) > 1 and not _shows_alike(on_public, suspect)):
                on_public = self.probe(case, subject)
            if on_public is None or not on_public.verdict.is_finding:
                said = "rejects the case" if on_public is None else f"says {on_public.verdict}"
                return self._give_up(SuspicionOutcome.INTERNAL_ONLY, suspect, f"{subject} {said}")
            shown = on_public
            if is_eager or kind_of(shown.verdict) != kind_of(suspect.verdict):
                # The public subject fails in another way, so that failure is investigated. Eager needs no compiler.
                suspect, trajectory = shown, []
        is_wrong = shown.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
        if is_wrong and shown.dynamo_same and not self.attention_only:
            return Conclusion(SuspicionOutcome.WITHIN_SAME, case, shown, suspect, "torch._dynamo.utils.same accepts it")

        trajectory = trajectory or self.shrink(suspect)
        confirmed = self._find_smallest_confirmed(trajectory, shown, subject)
        if confirmed is None:
            message = f"{subject} does not repeat it in fresh workers"
            return self._give_up(SuspicionOutcome.UNCONFIRMED, shown, message, suspect)
        minimal, shown = confirmed
        cheapest = shown if suspect.subject == subject else self.probe(minimal, suspect.subject)
        if cheapest is None or not cheapest.verdict.is_finding:
            cheapest = shown
        outcome = SuspicionOutcome.FINDING if chosen else SuspicionOutcome.INTERNAL
        return Conclusion(outcome, minimal, shown, cheapest, is_shrinking_cut=self.is_shrinking_cut)

    def probe(self, case: Case, subject: str, process: ProcessState = ProcessState.WARM) -> SubjectResult | None:
        """Judge a case. Without settings it runs under the form of the subject without options. None when eager
        rejects the case, or when its failure is no regression."""
        (result,) = self._probe_all([case], subject, process)
        return result

    def _probe_all(
        self, cases: Sequence[Case], subject: str, process: ProcessState = ProcessState.WARM
    ) -> list[SubjectResult | None]:
        self.probes += len(cases)
        questions = [Question(case, (_fit(subject, case),), process=process) for case in cases]
        return list(map(self._keep_regression, questions, self._ask(questions)))

    def _keep_regression(self, question: Question, result: SubjectResult | None) -> SubjectResult | None:
        if not self.baseline_version or result is None or not result.verdict.is_finding:
            return result
        return result if _is_worse(result, self._ask_baseline(question)) else None

    def _ask(self, questions: Sequence[Question]) -> list[SubjectResult | None]:
        self.begin(questions)
        return [next(iter(result.results), None) for result in self.asker.ask_all(questions)]

    def shrink(
        self, suspect: SubjectResult, accept: Callable[[Case, SubjectResult], None] = lambda case, result: None
    ) -> list[Case]:
        """Ever simpler cases that show the failure of `suspect` under its subject. `accept` gets each case with its
        result."""
        self.is_shrinking_cut, max_indirectness = False, indirectness(suspect.failure)
        attention_only = self.attention_only and suspect.verdict is not Verdict.EAGER_SUSPECT
        ahead: dict[str, SubjectResult | None] = {}

        def look_ahead(candidates: Sequence[Case]) -> None:
            if rest := [one for one in candidates if one.id not in ahead]:
                results = self._probe_all(rest, suspect.subject)
                ahead.update(zip((one.id for one in rest), results, strict=True))

        def still_fails(candidate: Case) -> bool:
            nonlocal max_indirectness
            if candidate.id not in ahead:
                look_ahead([candidate])
            result = ahead.pop(candidate.id)
            if result is None or indirectness(result.failure) > max_indirectness:
                return False
            if not is_same_failure(result, suspect, exact=True, attention_only=attention_only):
                return False
            max_indirectness = indirectness(result.failure)
            accept(candidate, result)
            return True

        def find_wrong(every: Case) -> str | None:
            result = self.probe(every, suspect.subject)
            seen = (one.output for one in (result.observations if result else ()) if isinstance(one, Parted))
            output = next(seen, None)
            if output is not None:
                return every.returns[output]
            value = suspect.value
            is_output = value is not None and value.kind == "output" and not value.is_gradient
            return self.case.returns[int(value.name)] if value and is_output else None

        def is_spent() -> bool:
            self.is_shrinking_cut = self.is_time_up() or (
                suspect.verdict.is_lost and self.probes >= self.process_probes
            )
            return self.is_shrinking_cut

        is_value = suspect.verdict.has_wrong_numbers and not attention_only
        return shrink(
            self.case,
            still_fails,
            is_spent,
            attention_only=attention_only,
            look_ahead=look_ahead,
            at_once=self.at_once,
            find_wrong=find_wrong if is_value and not self.case.calls else None,
        )

    def seen_in_baseline(self, conclusion: Conclusion) -> dict[str, str]:
        """The verdict of the baseline on the minimal case, by its version."""
        baseline = self._baseline_results.get((conclusion.case.id, conclusion.shown.subject))
        return {} if baseline is None else {self.baseline_version: str(baseline.verdict)}

    def list_changed_rewrites(self, conclusion: Conclusion) -> list[str]:
        """The rewrites of the minimal case that fired in the baseline or in this version alone, in lines."""
        baseline = self._baseline_results.get((conclusion.case.id, conclusion.shown.subject))
        both = {self.baseline_version: baseline, "this version": conclusion.shown}
        compiled = {label: one for label, one in both.items() if one is not None and has_rewrites(one.verdict)}
        return describe_changed({label: one.applied_rewrites for label, one in compiled.items()})

    def _find_smallest_confirmed(
        self, trajectory: list[Case], wanted: SubjectResult, subject: str
    ) -> tuple[Case, SubjectResult] | None:
        """The smallest case that fresh workers confirm. The last case is tried first, then bisection finds the case."""
        confirmed: dict[int, SubjectResult] = {}

        def is_lost(number: int) -> bool:
            result = self._confirm(trajectory[number], wanted, subject)
            confirmed.update({} if result is None else {number: result})
            return result is None

        last = len(trajectory) - 1
        number = 0
        if not is_lost(last):
            number = last
        elif last and not is_lost(0):
            number = bisect_left(range(last), True, lo=1, key=is_lost) - 1
        return (trajectory[number], confirmed[number]) if number in confirmed else None

    def _confirm(self, case: Case, wanted: SubjectResult, subject: str) -> SubjectResult | None:
        """The result of the last of `CONFIRMATIONS` fresh workers; None unless all give the same failure."""
        seen: SubjectResult | None = None
        for number in range(0, CONFIRMATIONS, self.at_once):
            count = min(self.at_once, CONFIRMATIONS - number)
            for result in self._probe_all([case] * count, subject, ProcessState.FRESH):
                is_exact, earlier, seen = seen is not None, seen or wanted, result
                if not is_same_failure(result, earlier, exact=is_exact, attention_only=self.attention_only):
                    return None
        return seen

    def _try_history(self, suspect: SubjectResult) -> Conclusion:
        """The conclusion about the case after the earlier cases that its failure needs."""
        self.needs_history = True

        def fails(case: Case) -> bool:
            result = self.probe(case, suspect.subject)
            return is_same_failure(result, suspect, exact=False, attention_only=self.attention_only)

        # The same compiler leaves the same state under its other subjects.
        wanted = compiler_of(suspect.subject)
        history = [case for case, subjects in self.history() if wanted in map(compiler_of, subjects)]
        # A subject with warm caches runs each case as a second process does.
        repeats = not get_spec(suspect.subject).warm
        found = find_repeats(self.case, fails, self.is_time_up) if repeats else None
        found = found or find_earlier(self.case, history, fails, self.is_time_up)
        if found is not None:
            self.case = found
            return self.run()
        said = "; time is up" if self.is_time_up() else ""
        message = f"{suspect.subject} does not repeat it in fresh workers, alone or after the cases before it{said}"
        return self._give_up(SuspicionOutcome.UNCONFIRMED, suspect, message)

    def _ask_baseline(self, question: Question) -> SubjectResult | None:
        (baseline,) = self._ask([replace(question, process=question.process | ProcessState.BASELINE)])
        self._baseline_results[question.case.id, question.subjects[0]] = baseline
        return baseline

    def _give_up(
        self, outcome: SuspicionOutcome, shown: SubjectResult, message: str, cheapest: SubjectResult | None = None
    ) -> Conclusion:
        """The conclusion `outcome`, for a failure that is not shown; `IN_BOTH` if the baseline fails too."""
        # The last subject asked about is the public subject.
        asked = [subject for case_id, subject in self._baseline_results if case_id == self.case.id]
        if asked and not _is_worse(shown, self._baseline_results[self.case.id, asked[-1]]):
            return self._set_aside(self.case, shown, asked[-1])
        return Conclusion(outcome, self.case, shown, cheapest or shown, message)

    def _set_aside(self, case: Case, shown: SubjectResult, subject: str) -> Conclusion:
        baseline = self._baseline_results[case.id, subject]
        if baseline is not None and baseline.verdict.is_finding and not baseline.verdict.is_lost:
            said = ": ".join(filter(None, [f"{baseline.verdict} under {subject}", describe(baseline)]))
            return Conclusion(
                SuspicionOutcome.IN_BOTH, case, shown, shown, f"also in {spell_label(self.baseline_version)}: {said}"
            )
        why = "eager refuses the case" if baseline is None else f"{subject}: {describe(baseline) or baseline.verdict}"
        message = f"{spell_label(self.baseline_version)} can't judge it: {why}"
        return Conclusion(SuspicionOutcome.NOT_COMPARED, case, shown, shown, message)


def _shows_alike(result: SubjectResult | None, suspect: SubjectResult) -> bool:
    """Whether a result is a failure of the same kind, and one that PyTorch's own check sees too."""
    if result is None or not result.verdict.is_finding or kind_of(result.verdict) != kind_of(suspect.verdict):
        return False
    return not (result.verdict.has_wrong_numbers and result.dynamo_same)


def _fit(subject: str, case: Case) -> str:
    """The form of the subject that runs a case: without options for a case without settings."""
    return subject if case.settings else without_options(subject)


def _is_worse(failed: SubjectResult, baseline: SubjectResult | None) -> bool:
    """Whether a failure is a regression: the baseline passes, or fails in another way. False if it lost its process."""
    is_lost = baseline is None or baseline.verdict.is_lost
    return not is_lost and compare_outcome(baseline, failed) in (Outcome.PASSES, Outcome.FAILS_OTHERWISE)
