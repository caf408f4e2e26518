"""Collects the findings of run directories and case files, without duplicates, and their root causes.

Each cause is stored in the run directory as soon as it is found.
"""

import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.causes import CauseKey, MechanismKind, Stage, details
from corpus.entry import CASE_SUFFIX, Entry, Found
from corpus.ledger import Ledger
from corpus.versions import TORCH, spell_version, split_version
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache, Asker
from fuzz.ask.transport import CompilersOff
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerFault
from fuzz.attribution.attribute import find_cause, study_cheapest
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.stored import cause_path, read_cause, write_cause
from fuzz.commands import require_allowed
from fuzz.known_bugs import KnownBugs, identify, read_known_bugs
from fuzz.protocol import EAGER, Verdict
from fuzz.run_store import RESULTS_FILE, FindingRow
from fuzz.run_summary import RunSummary
from fuzz.subjects import compiler_of, is_user_function, list_packages
from fuzz.versions import public_version
from generators.errors import UserError
from triage import script_runs

LOOSE = Path("runs")
"""The causes of findings without a run are stored here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A minimal failing case and its file."""

    entry: Entry
    path: Path
    run: Path | None = None
    """The run directory; None for a case file alone."""
    met: int = 1
    """The number of failures that it explained."""
    first_seen: str = ""
    last_seen: str = ""
    """Days; "" if not known."""
    versions: frozenset[str] = frozenset()
    """The versions of torch in which it failed."""
    was_known: bool = False
    """Whether its run knew it from the start, or learned it of another run."""

    @property
    def id(self) -> str:
        """The id of its case."""
        return self.entry.case.id


def gather(paths: Sequence[Path]) -> list[Finding]:
    """The findings of these run directories, case files and directories of case files, ordered by id, each once.

    Failures that only internal subjects show are left out. The counts of several runs add up. A case file adds nothing
    to the count of a run. Raises UserError for any other path.
    """
    if not paths:
        raise UserError(f"name at least one run directory, case file (*{CASE_SUFFIX}) or directory of case files")
    merged: dict[str, Finding] = {}
    for finding in (finding for path in paths for finding in _read_findings(path)):
        other = merged.get(finding.id)
        merged[finding.id] = finding if other is None else _join(other, finding)
    return [merged[key] for key in sorted(merged)]


def read_row(row: FindingRow, run: RunSummary) -> Finding:
    """The finding in a row of a run's store."""
    torch, runtimes = run.torch, dict(map(split_version, run.runtimes))
    if row.kind == "new" and row.entry.found is not None:
        torch, runtimes = row.entry.found.torch or torch, dict(row.entry.found.versions)
    first = row.first_seen if row.kind == "new" else row.last_seen  # known findings are stored when a session starts
    days, was_known = (_day(first), _day(row.last_seen)), row.kind == "known"
    return Finding(row.entry, Path(row.file), run.path, row.count, *days, _versions(torch, runtimes), was_known)


def _read_findings(path: Path) -> Iterator[Finding]:
    if (path / RESULTS_FILE).is_file():
        run = RunSummary.load(path)
        yield from (read_row(row, run) for row in run.findings if row.kind != "internal")
        return
    may_hold_cases = path.is_dir() or path.name.endswith(CASE_SUFFIX)
    entries = corpus_entry.load_files([path]) if may_hold_cases else {}
    if not entries:
        raise UserError(
            f"{path}: no run directory (it has no {RESULTS_FILE}), case file (*{CASE_SUFFIX}) or directory of them"
        )
    for file, entry in entries.items():
        if file == path and entry.expectation.status != "known":
            raise UserError(f"{path}: no finding, since its case is expected to pass; fuzz.shrink stores what it shows")
        if entry.expectation.status == "known":
            found = entry.found or Found("", "")
            yield Finding(entry, file, None, 1, *(found.date[:10],) * 2, _versions(found.torch, found.versions))


def _join(one: Finding, other: Finding) -> Finding:
    # The order of paths must not matter. The run that found it has its cause.
    kept = min(one, other, key=lambda it: (it.run is None, it.was_known, str(it.run), str(it.path)))
    days = sorted(filter(None, (one.first_seen, other.first_seen, one.last_seen, other.last_seen)))
    met = one.met + other.met if one.run != other.run and other.run and one.run else max(one.met, other.met)
    first, last = (days[0], days[-1]) if days else ("", "")
    return replace(kept, met=met, first_seen=first, last_seen=last, versions=one.versions | other.versions)


def _versions(torch: str, runtimes: Mapping[str, str]) -> frozenset[str]:
    told = {TORCH: public_version(torch), **runtimes} if torch else runtimes
    return frozenset(spell_version(*one) for one in told.items())


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class Attributed:
    """A finding with the key of its cause."""

    finding: Finding
    key: CauseKey
    cause: RootCause | None = None
    why_open: str = ""
    """Why the cause is not known; "" if it is known."""

    @property
    def is_open(self) -> bool:
        """Whether the cause is not known."""
        return self.key.stage is Stage.OPEN


def attribute_findings(
    findings: Sequence[Finding],
    config: WorkerConfig,
    allowed: Collection[str] = (),
    device: str = "",
    ledger: Ledger | None = None,
) -> Generator[Attributed]:
    """Each finding with its cause under the torch of `config`. Finds and stores causes that are not stored yet.

    Writes progress to stderr. `allowed`: functions of the user's that may be imported. `device`: the device to run on;
    "": the device of each finding. `ledger`: the experiments of its bugs decide which of them a finding is.
    """
    if not findings:
        return
    packages = dict.fromkeys((TORCH, *(name for one in findings for name in list_packages(one.entry.subject)[:1])))
    versions = {name: script_runs.version(name, config.python) for name in packages}
    paths = [cause_path(one.run or LOOSE, one.entry, versions, device or one.entry.device) for one in findings]
    missing = [path for path in paths if read_cause(path) is None]
    with attributor(config, device, ledger) as worker:
        for finding, path in zip(findings, paths, strict=True):
            cause = read_cause(path)
            if cause is None:
                told = f"{finding.entry.expectation.verdict} under {finding.entry.subject}, {finding.path}"
                sys.stderr.write(f"attributing {missing.index(path) + 1} of {len(missing)}: {told}\n")
                try:
                    require_allowed(finding.entry.subject, allowed, "it")
                    cause = worker.find_cause(finding.entry)
                except CompilersOff:
                    raise
                except (UserError, WorkerFault) as error:
                    yield _leave_open(finding, " ".join(str(error).split()))
                    continue
                write_cause(path, cause)
            yield Attributed(finding, worker.find_key(finding.entry, cause), cause)


class Attributor:
    """Runs experiments on findings with a worker for each device and function of the user's."""

    def __init__(self, config: WorkerConfig, device: str, ledger: Ledger | None, workers: ExitStack) -> None:
        self._config, self._device, self._ledger, self._workers = config, device, ledger, workers
        self._askers: dict[tuple[WorkerConfig, int], Asker] = {}
        self._known_bugs: dict[WorkerConfig, KnownBugs] = {}

    def find_cause(self, entry: Entry) -> RootCause:
        """Raises UserError with the reason if there is none."""
        return find_cause(entry, self._choose_asker(entry))

    def find_key(self, entry: Entry, cause: RootCause) -> CauseKey:
        """The key of the ledger's bug that the finding is shown to be; else the key of the finding's cause.

        Without a named part, two bugs can share a cause. Then the deciding experiments join the key.
        """
        ledger = self._ledger
        listed = ledger.find_cause(cause.key) if ledger else None
        if ledger is None or (listed is not None and listed.decided_by in ((), cause.decided_by)):
            return cause.key
        asker = self._choose_asker(entry)
        study = study_cheapest(entry, asker)
        if not study.result.verdict.is_finding:
            return cause.key
        if asker.config not in self._known_bugs:
            self._known_bugs[asker.config] = read_known_bugs(ledger, asker.hello, {})
        known, _ = identify(study, self._known_bugs[asker.config], cause=cause)
        if known is not None and known.bug is not None:
            return known.bug.cause
        if listed is None or cause.key.right:
            return cause.key
        told = tuple(" ".join((name, *arguments)) for name, arguments in cause.decided_by)
        return replace(cause.key, details=(*cause.key.details, *details(experiments=told or entry.case.id)))

    def _choose_asker(self, entry: Entry) -> Asker:
        named = (entry.subject,) if is_user_function(entry.subject) else ()
        own = replace(self._config, device=self._device or entry.device, named=named)
        verdict = entry.found.verdict if entry.found else entry.expectation.verdict
        key = own, 2 if verdict == Verdict.NONDETERMINISTIC else 1
        if key not in self._askers:
            self._askers[key] = AnswerCache(self._workers.enter_context(open_evaluator(own, repeat=key[1])))
        return self._askers[key]


@contextmanager
def attributor(config: WorkerConfig, device: str = "", ledger: Ledger | None = None) -> Iterator[Attributor]:
    """`device`: the device to run on; "": the device of each finding. `ledger`: bugs that a finding may be."""
    with ExitStack() as workers:
        yield Attributor(config, device, ledger, workers)


def load_attributed(findings: Iterable[Finding]) -> Iterator[Attributed]:
    """Each finding with its stored cause, of any torch version, preferably for its own device. Runs nothing."""
    for finding in findings:
        own, every = (cause_path(finding.run or LOOSE, finding.entry, "*", one) for one in (finding.entry.device, "*"))
        files = sorted(every.parent.glob(every.name), reverse=True)
        files.sort(key=lambda file: not file.match(own.name))
        cause = next(filter(None, map(read_cause, files)), None)
        if cause is None:
            yield _leave_open(finding, "python -m triage.cluster was not run on it")
        else:
            yield Attributed(finding, cause.key, cause)


def _leave_open(finding: Finding, why: str) -> Attributed:
    entry = finding.entry
    who = EAGER if entry.verdict == Verdict.EAGER_SUSPECT else compiler_of(entry.subject)
    patterns = "+".join(sorted(name for name in entry.found.fired if "sfdp" in name)) if entry.found else ""
    kind = MechanismKind(entry.verdict or MechanismKind.FAILS)
    key = CauseKey(who, Stage.OPEN, patterns, kind, details(case=entry.case.id))
    return Attributed(finding, key, why_open=why)
