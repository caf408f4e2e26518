"""Clusters of findings, one for each root cause: `python -m triage.cluster RUN_OR_CASES...`"""

from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter


def cluster(
    *paths: Path,
    ledger: Path | None = None,
    update: bool = False,
    subject: list[str] | None = None,
    python: str | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
) -> int:
    """Group findings by root cause, over any number of campaigns, and compare them with the ledger.

    Each finding is attributed once, which takes seconds to a minute. Its cause is stored in its run directory, or in
    runs/attributions for a case file. A repeated command reuses stored causes. Findings that the ledger lists are not
    attributed; the experiments of its bugs are run on those whose cause it lacks. docs/triage.md says when two findings
    have one root cause.

    Parameters
    ----------
    paths
        Run directories, case files, and directories of case files.
    ledger
        The ledger of known bugs, by default corpus/ledger.yaml of this checkout. With --update it need not exist.
    update
        Update the ledger: add an entry with status new, and the simplest case as example, for each cluster it lacks,
        and record when and where each bug was met. Fields that a person wrote stay.
    subject
        A function of yours, package.module:function, that findings are about. Allows its import. May be repeated.
    python
        Interpreter, and so torch version, of the worker; by default the current one.

    Examples
    --------
    python -m triage.cluster runs/NAME
    python -m triage.cluster runs corpus/found --update
    0: the ledger has a decision on every cluster
    1: a cluster has no entry or an open one, or is fixed and was met again
    """
    from corpus import ledger as ledgers
    from fuzz.attribution.decide import load_ledger
    from fuzz.durations import format_count
    from triage.cluster import clusters
    from triage.cluster.findings import attribute_findings, gather

    file = ledger or ledgers.LEDGER
    known = ledgers.Ledger(file) if not file.exists() and (update or ledger is None) else load_ledger(file)
    found = gather(paths)
    if update:
        ledgers.check_writable(file)
    config = worker.configure(python, ())
    listed, rest = clusters.split_listed(found, known)
    attributed = [*listed, *attribute_findings(rest, config, subject or (), worker.device or "", known)]
    made = clusters.cluster(attributed, known)
    if update:
        before = len(known.bugs)
        known = clusters.record(known, made)
        made = clusters.cluster(attributed, known)
        added = format_count(len(known.bugs) - before, "bug")
        print(f"{file}: added {added}, updated the others\n")  # noqa: T201 - a command line prints its result
    print(clusters.format_table(made, known, config.python))  # noqa: T201 - see above
    return int(any(one.is_news for one in made))


if __name__ == "__main__":
    enter(cluster, "triage.cluster")
