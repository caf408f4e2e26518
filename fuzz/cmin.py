"""Minimise the queue of a campaign: `python -m fuzz.cmin RUN --into DIR`."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import enter

if TYPE_CHECKING:
    from generators.program.case import Case

Queued = list[tuple["Case", frozenset[str]]]


def cmin(run: Path, *, into: Path) -> None:
    """Select a few small cases that together keep the coverage of a campaign's queue.

    Parameters
    ----------
    run
        Directory of a campaign with --engine guided or atheris, as given to `fuzz.run --out`.
    into
        Directory for the case files.

    Examples
    --------
    python -m fuzz.cmin runs/NAME --into seeds
    python -m fuzz.run --budget 1h --seeds seeds
    """
    from corpus import entry
    from corpus.entry import SUFFIX, Entry
    from corpus.files import require_writable
    from fuzz.run_store import Results
    from generators.errors import UserError

    with closing(Results.open_readonly(run)) as results:
        require_writable(into, "--into")
        queue = list(results.queue())
    if not queue:
        raise UserError(f"{run}: its queue is empty; only a campaign with --engine guided or atheris has one")
    chosen = select_cover(queue)
    for case, names in chosen:
        shown = sorted(names, key=lambda name: (" with " in name, name))
        more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
        note = f"Reaches {', '.join(shown[:8])}{more}."
        entry.write(Entry(case, note=note), into / f"{case.id}{SUFFIX}")
    everything = frozenset[str]().union(*(names for _, names in queue))
    print(f"{len(chosen)} of {len(queue)} cases keep all {len(everything)} coverage items; written to {into}")


def select_cover(queue: Queued) -> Queued:
    """Cases with the coverage of the queue, each with what it adds: greedily, most items per operation first."""
    missing = set[str]().union(*(names for _, names in queue))
    left, chosen = list(queue), []
    while missing:
        # A full pass for every choice is short, since what a case adds only shrinks.
        case, names = max(left, key=lambda item: (len(item[1] & missing) / (4 + len(item[0].ops)), item[0].id))
        chosen.append((case, frozenset(names & missing)))
        missing -= names
        left = [(other, reached) for other, reached in left if reached & missing]
    return chosen


if __name__ == "__main__":
    enter(cmin, "fuzz.cmin")
