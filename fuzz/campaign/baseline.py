"""`--against`: a second interpreter. What fails there in the same way is no regression, and so no finding of such a campaign."""

from fuzz.campaign.investigate import Conclusion, Outcome, Prober
from fuzz.campaign.symptom import EAGER, PROCESS, kind_of
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.render import describe
from generators.program.case import Case


class Against:
    """A prober that lets a failure through only where the other interpreter, of torch `torch`, passes the case or fails in
    another way: what raised and is silently wrong now got worse. `probe` asks the campaign's own one, `other` the other."""

    def __init__(self, probe: Prober, other: Prober, torch: str) -> None:
        self._probe, self._other, self._torch = probe, other, torch
        self._said: dict[tuple[str, str], SubjectResult | None] = {}

    def __call__(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """What the campaign's interpreter says; None where it fails and the other does in the same way, or can't judge it."""
        result = self._probe(case, subject, fresh=fresh)
        if (
            result is None
            or not result.verdict.is_finding
            or _is_worse(result, self._asked(case, subject, fresh=fresh))
        ):
            return result
        return None

    def before(self, case: Case, suspect: SubjectResult) -> Conclusion | None:
        """What there is to conclude before any work: that this failure is no regression; None where it may be one."""
        subject = EAGER if suspect.verdict is Verdict.EAGER_SUSPECT else suspect.subject
        return (
            None if _is_worse(suspect, self._asked(case, subject, fresh=False)) else self._aside(case, suspect, subject)
        )

    def after(self, conclusion: Conclusion) -> Conclusion:
        """The conclusion, or, where it came to nothing because of the other interpreter, that."""
        if conclusion.outcome not in (Outcome.INTERNAL_ONLY, Outcome.UNCONFIRMED):
            return conclusion
        # The last subject asked about is the one that users meet.
        asked = [subject for case_id, subject in self._said if case_id == conclusion.case.id]
        if not asked or _is_worse(conclusion.shown, self._said[conclusion.case.id, asked[-1]]):
            return conclusion
        return self._aside(conclusion.case, conclusion.shown, asked[-1])

    def seen(self, conclusion: Conclusion) -> dict[str, str]:
        """What the other version said of the minimal case, for its file."""
        there = self._said.get((conclusion.case.id, conclusion.shown.subject))
        return {} if there is None else {self._torch: str(there.verdict)}

    def _asked(self, case: Case, subject: str, *, fresh: bool) -> SubjectResult | None:
        there = self._other(case, subject, fresh=fresh)
        self._said[case.id, subject] = there
        return there

    def _aside(self, case: Case, shown: SubjectResult, subject: str) -> Conclusion:
        there = self._said[case.id, subject]
        if there is not None and there.verdict.is_finding and there.verdict not in PROCESS:
            told = ": ".join(filter(None, [f"{there.verdict} under {subject}", describe(there)]))
            return Conclusion(Outcome.IN_BOTH, case, shown, shown, f"also in torch {self._torch}: {told}")
        why = "eager refuses the case" if there is None else f"{subject}: {describe(there) or there.verdict}"
        return Conclusion(Outcome.NOT_COMPARED, case, shown, shown, f"torch {self._torch} can't judge it: {why}")


def _is_worse(here: SubjectResult, there: SubjectResult | None) -> bool:
    """Whether a failure is none there, or another one. That a process was lost there says nothing of the case."""
    if there is None or there.verdict is Verdict.SKIPPED or there.verdict in PROCESS:
        return False
    return not there.verdict.is_finding or kind_of(there.verdict) != kind_of(here.verdict)
