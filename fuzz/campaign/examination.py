"""Experiments of a campaign: whether a failure is a known bug, and the cause of a finding."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from corpus.entry import Entry
from corpus.ledger import Bug
from fuzz.ask.question import Asker
from fuzz.ask.transport import WorkerUnavailable
from fuzz.attribution.attribute import find_cause
from fuzz.attribution.decide import decides
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.stored import cause_path, write_cause
from fuzz.attribution.study import Study
from fuzz.bug_identity import Symptom, measured_rewrite
from fuzz.campaign.known_bugs import KnownBugs, KnownFinding
from fuzz.campaign.options import DiskFull
from generators.errors import UserError


class NoTimeLeft(UserError):
    """The time for experiments is over."""


def find_decided(
    findings: Iterable[KnownFinding], study: Study, known_bugs: KnownBugs, run: Path
) -> KnownFinding | None:
    """The first of these findings whose experiments show that the failure of `study` is the same bug.

    Searches for causes that findings still lack, and stores them in the run directory `run`. Raises `NoTimeLeft`.
    """
    for finding in findings:
        known = _with_cause(finding, study, known_bugs, run)
        if decides(known.decided_by or (), study, known.symptom.wrong_rewrites):
            return known
    return None


def examine_minimum(
    study: Study, symptom: Symptom, known_bugs: KnownBugs, run: Path
) -> tuple[KnownFinding | Bug | None, RootCause | None]:
    """(bug, cause): the known bug, if experiments show the minimal case of `study` to be one; else the cause, if it is
    found in time."""
    with suppress(NoTimeLeft):
        if finding := find_decided(known_bugs.list_alike(symptom), study, known_bugs, run):
            return finding, None
        cause = _seek_cause(study.entry, study.asker, run)
        if cause is None:
            return None, None
        with suppress(NoTimeLeft):
            for one in known_bugs.list_possible(symptom):
                _with_cause(one, study, known_bugs, run)  # A finding that was saved in a hurry has none.
            if finding := find_decided(known_bugs.list_of_cause(cause.key), study, known_bugs, run):
                return finding, cause
            bug = known_bugs.find_bug(cause.key)
            if bug is not None and decides(
                bug.decided_by, study, tuple(filter(None, map(measured_rewrite, bug.causes)))
            ):
                return bug, cause
        return None, cause
    return None, None


def _with_cause(finding: KnownFinding, study: Study, known_bugs: KnownBugs, run: Path) -> KnownFinding:
    if finding.decided_by is not None or finding.entry is None:
        return finding
    return known_bugs.set_cause(finding, _seek_cause(finding.entry, study.asker, run))


def _seek_cause(entry: Entry, asker: Asker, run: Path) -> RootCause | None:
    try:
        cause = find_cause(entry, asker)
    except (NoTimeLeft, DiskFull, WorkerUnavailable):
        raise  # which say nothing of the case
    except UserError:
        return None  # it shows no bug here, or can't be judged
    write_cause(cause_path(run, entry, asker.hello.packages, asker.config.device), cause)
    return cause
