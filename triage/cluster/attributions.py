"""Attributing many findings: every result is kept beside its run at once, so that no work is done or lost twice."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.atomic_write import replace_file
from corpus.entry import Entry
from corpus.ledger import CauseKey
from fuzz.bug_identity import EAGER
from fuzz.evaluator import Evaluator, WorkerConfig, WorkerFault, open_evaluator
from fuzz.protocol import Verdict
from fuzz.subjects import compiler_of, is_named
from generators.errors import UserError
from triage.attribution.cause import RootCause, attributed
from triage.cluster.findings import Finding
from triage.cluster.roots import root_of, way_of

DIRECTORY = "attributions"
LOOSE = Path("runs")
"""Beside what the causes of findings without a run are kept."""

Attributor = Callable[[Entry], RootCause]
"""Says what a finding is the fault of. Raises UserError, which says why, where that can't be told."""

OPEN = "open"
"""The stage of a root that nobody could tell."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """A finding with its root; `why_open`: why its cause could not be told, "" where it was."""

    finding: Finding
    root: CauseKey
    cause: RootCause | None = None
    why_open: str = ""


class Attributions:
    """The causes of findings under one torch version: read where they are kept, else asked for and kept.

    `allowed`: the functions of the user's own that may be imported; `device`: the one judged on, "" for the one that each
    finding is about.
    """

    def __init__(self, attributor: Attributor, torch: str, allowed: Iterable[str] = (), device: str = "") -> None:
        self._attributor, self._torch, self._allowed, self._device = attributor, torch, frozenset(allowed), device

    def missing(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those whose cause is not kept."""
        return [finding for finding in findings if self._kept(finding) is None]

    def all(
        self,
        findings: Iterable[Finding],
        tell: Callable[[Finding], None] = lambda finding: None,
        *,
        again: bool = False,
    ) -> Iterator[Attributed]:
        """Each with its root; `tell` hears of a finding before it is worked on, which takes seconds to a minute. `again`: what
        is kept is not read."""
        for finding in findings:
            cause = None if again else self._kept(finding)
            if cause is None:
                tell(finding)
                try:
                    cause = self._asked(finding)
                except (UserError, WorkerFault) as error:
                    yield unattributed(finding, " ".join(str(error).split()))
                    continue
                replace_file(self._path(finding), json.dumps(cause.to_dict(), indent=1).encode())
            yield Attributed(finding, root_of(cause, finding.entry), cause)

    def _asked(self, finding: Finding) -> RootCause:
        subject = finding.entry.subject
        if is_named(subject) and subject not in self._allowed:
            raise UserError(f"it is about {subject}, which runs code of yours: allow it with --subject {subject}")
        return self._attributor(finding.entry)

    def _kept(self, finding: Finding) -> RootCause | None:
        return _read(self._path(finding))

    def _path(self, finding: Finding) -> Path:
        return _directory(finding) / f"{_name(finding)}-{self._torch}-{self._device or finding.entry.device}.json"


@contextmanager
def attributor(setup: WorkerConfig, device: str = "") -> Iterator[Attributor]:
    """Attributes by what workers of this setup say, one for each device and function of the user's. `device`: the one to judge
    on, "" for the one that each finding is about."""
    with ExitStack() as stack:
        known: dict[tuple[WorkerConfig, int], Evaluator] = {}

        def ask(entry: Entry) -> RootCause:
            named = (entry.subject,) if is_named(entry.subject) else ()
            own = replace(setup, device=device or entry.device, named=named)
            # What differs from run to run shows in two.
            repeat = 2 if _verdict(entry) == Verdict.NONDETERMINISTIC else 1
            if (own, repeat) not in known:
                known[own, repeat] = stack.enter_context(
                    open_evaluator(own, repeat=repeat, with_error_map=True, remember=True)
                )
            return attributed(entry, known[own, repeat]).cause

        yield ask


def _verdict(entry: Entry) -> str:
    return entry.found.verdict if entry.found else entry.expectation.verdict


def kept(findings: Iterable[Finding]) -> Iterator[Attributed]:
    """Each with the root that is kept, under whatever torch it was told, on the device it is about rather than another;
    nothing is run."""
    for finding in findings:
        own = f"-{finding.entry.device}.json"
        names = sorted((path.name for path in _directory(finding).glob(f"{_name(finding)}-*.json")), reverse=True)
        files = [_directory(finding) / name for name in sorted(names, key=lambda name: not name.endswith(own))]
        cause = next(filter(None, map(_read, files)), None)
        if cause is None:
            yield unattributed(finding, "python -m triage.cluster was not run on it")
        else:
            yield Attributed(finding, root_of(cause, finding.entry), cause)


def unattributed(finding: Finding, why: str) -> Attributed:
    """A finding whose cause is not told: apart from all that fail in another way, or by other rewrites."""
    entry = finding.entry
    who = EAGER if entry.expectation.verdict == Verdict.EAGER_SUSPECT else compiler_of(entry.subject)
    fired = "+".join(sorted(name for name in entry.found.fired if "sfdp" in name)) if entry.found else ""
    return Attributed(finding, CauseKey(who, OPEN, fired, f"{way_of(entry)} ({finding.id})"), None, why)


def _directory(finding: Finding) -> Path:
    return (finding.run or LOOSE) / DIRECTORY


def _name(finding: Finding) -> str:
    return re.sub(r"[^\w.+-]", "_", f"{finding.id}-{finding.entry.subject}")


def _read(path: Path) -> RootCause | None:
    try:
        return RootCause.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # none there, or of another version of ours: it is told anew
