"""Writing clusters to the ledger, and an example of each new bug beside it."""

from collections.abc import Sequence
from dataclasses import replace

from corpus import entry as corpus_entry
from corpus.entry import SUFFIX
from corpus.ledger import Bug, Ledger, check_writable, load, save
from triage.cluster.clusters import Cluster

EXAMPLES = "known"
"""Where examples go, beside the ledger."""


def record(ledger: Ledger, clusters: Sequence[Cluster]) -> Ledger:
    """Save the ledger and return it; a bug that its file lacks gets the simplest case of its cluster as example.

    Raises UserError.
    """
    check_writable(ledger.path)
    # Which examples the others have, if any, a person decided.
    had = {bug.id for bug in load(ledger.path).bugs} if ledger.path.exists() else set[str]()
    bugs = []
    for bug in ledger.bugs:
        mine = [one for one in clusters if one.example.id in bug.findings]
        bugs.append(_with_example(bug, mine[0], ledger) if mine and bug.id not in had else bug)
    ledger = Ledger(ledger.path, tuple(bugs))
    save(ledger)
    return ledger


def _with_example(bug: Bug, one: Cluster, ledger: Ledger) -> Bug:
    name = f"{EXAMPLES}/{bug.id}{SUFFIX}"
    # The file first: an entry never names one that is not there.
    corpus_entry.write(one.example.entry, ledger.path.parent / name)
    return replace(bug, cases=(name,))
