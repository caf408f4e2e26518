"""Clusters of findings, one for each root cause: `python -m triage.cluster RUN_OR_CASES...`"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fuzz.cli import enter

if TYPE_CHECKING:
    from corpus.ledger import Ledger
    from fuzz.evaluator import WorkerConfig
    from triage.cluster.attributions import Attributed
    from triage.cluster.findings import Finding


def cluster(
    *paths: Path,
    ledger: Path | None = None,
    update: bool = False,
    again: bool = False,
    subject: list[str] | None = None,
    python: str | None = None,
    device: str | None = None,
    timeout: str = "120s",
    memory: int = 8192,
) -> int:
    """Group findings by their root cause, over any number of campaigns, and hold them against the ledger.

    Each finding is attributed once, which takes seconds to a minute; the result is kept in its run directory (of a case
    file alone, in runs/attributions), so that an interrupted command goes on where it was and a second one is instant.
    What the ledger lists is not attributed again. docs/triage.md says when two findings have one root cause.

    Exit code 0: somebody decided about every cluster in the ledger. 1: one is new, or called fixed and back.

    Parameters
    ----------
    paths
        Run directories, case files, and directories of case files.
    ledger
        The ledger; corpus/ledger.yaml of this checkout when left out. With --update it need not exist.
    update
        Write into the ledger: entries with status new for clusters it lacks, each with its simplest case beside the ledger,
        and what was met when and where. What a person wrote stays.
    again
        Attribute anew, also what is kept or listed.
    subject
        A function of yours, package.module:function, that findings are about and that may be imported; repeatable.
    python
        The interpreter, and so the torch version, to attribute under; the current one by default.
    device
        cpu or cuda; by default the device each finding is about.
    timeout
        How long one stage of a case may take, such as 60s.
    memory
        MiB of memory a worker may use.
    """
    from corpus import ledger as ledgers
    from corpus.entry import DEVICES
    from fuzz.durations import format_count, parse_duration
    from fuzz.evaluator import ROOT, WorkerConfig
    from generators.errors import UserError
    from triage.cluster.clusters import cluster as clustered
    from triage.cluster.clusters import updated
    from triage.cluster.findings import gather
    from triage.cluster.ledger_update import record
    from triage.cluster.table import table

    if device is not None and device not in DEVICES:
        raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    file = ledger or ROOT / "corpus" / "ledger.yaml"
    known = ledgers.Ledger(file) if not file.exists() and (update or ledger is None) else ledgers.load(file)
    findings = gather(paths)
    setup = WorkerConfig(
        python or sys.executable, device or "cpu", timeout=parse_duration(timeout, "timeout"), memory_mib=memory
    )
    attributed = _attributed(findings, known, setup, frozenset(subject or ()), device or "", again=again)
    clusters = clustered(attributed, known)
    if update:
        had = len(known.bugs)
        known = record(updated(known, clusters), clusters)
        clusters = clustered(attributed, known)
        _say(f"{file}: {format_count(len(known.bugs) - had, 'bug')} added, the others brought up to date\n")
    _say(table(clusters, known))
    return int(any(one.is_news for one in clusters))


def _attributed(
    findings: list["Finding"],
    ledger: "Ledger",
    setup: "WorkerConfig",
    allowed: frozenset[str],
    device: str,
    *,
    again: bool,
) -> list["Attributed"]:
    from triage.cluster.attributions import Attributions, attributor
    from triage.cluster.clusters import split
    from triage.report.environment import version

    told, rest = ([], findings) if again else split(findings, ledger)
    if not rest:
        return told
    with attributor(setup, device) as ask:
        attributions = Attributions(ask, version("torch", setup.python), allowed, device)
        work = rest if again else attributions.missing(rest)

        def tell(finding: "Finding") -> None:
            entry, number = finding.entry, work.index(finding) + 1
            _say(
                f"attributing {number} of {len(work)}: {entry.expectation.verdict} under {entry.subject}, {finding.path}",
                sys.stderr,
            )

        return [*told, *attributions.all(rest, tell, again=again)]


def _say(text: str, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()


if __name__ == "__main__":
    enter(cluster, "triage.cluster")
