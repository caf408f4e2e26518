"""What a report is asked for: a case, a bug of the ledger, or all bugs of a run."""

from collections.abc import Iterator
from pathlib import Path

from corpus.ledger import Ledger
from fuzz.campaign.store import FILE
from generators.errors import UserError
from triage.cluster.clusters import kept_clusters


def targets(what: Path, ledger: Ledger) -> Iterator[tuple[str, Path]]:
    """The case files to report about, and for those of a run the directory's name below --out. Raises UserError."""
    if (what / FILE).is_file():
        clusters = kept_clusters([what], ledger)
        if not clusters:
            raise UserError(f"{what}: this run found nothing to report")
        for one in clusters:
            yield one.bug.id if one.bug else one.example.id, one.example.path
        return
    if what.exists():
        yield "", what
        return
    bug = next((bug for bug in ledger.bugs if bug.id == str(what)), None)
    if bug is None:
        raise UserError(f"{what}: no case file, no run directory, and no id of {ledger.path}")
    examples = ledger.examples(bug)
    if not examples:
        raise UserError(f"{ledger.path}: {bug.id} has no example to report about")
    yield "", examples[0]
