"""Turn a case into a report: `python -m triage.report WHAT --out DIR`. Nothing is ever sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter

if TYPE_CHECKING:
    from corpus.ledger import Ledger
    from fuzz.evaluator import WorkerConfig


def report(
    what: Path,
    *,
    out: Path,
    ledger: Path | None = None,
    subject: list[str] | None = None,
    python: str | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    explain: str = "60s",
    overwrite: bool = False,
) -> int:
    """Write report.md (the draft of an issue) and repro.py (one file that needs only torch) for a case.

    For a run directory, write one of each for every root cause that `triage.cluster` found and for every finding
    without a known cause.

    The case is run again with every backend from eager to Inductor, and repro.py is run. What is no bug of
    torch.compile (rounding, an unstable program, NaN by design, casts elided by design, a difference that PyTorch's own
    check accepts) gets no report; the command says why.

    A case about an attention function gets a report for its author: the call, the sizes that fail, and a repro.py that
    imports the function.

    Parameters
    ----------
    what
        A case file, the id of a bug in the ledger, or a run directory.
    out
        Directory for report.md and repro.py; created if missing. For a run, each report has a subdirectory.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    subject
        The attention function to report about; by default the case's own. A function of yours, package.module:function,
        must be named here because it is imported. Findings of a run keep the subject they were found with; there it
        says only what may be imported, and may be repeated.
    python
        The interpreter, and so the torch version, to report about; by default the current one.
    explain
        How long to search for the conditions of the failure by changing one property at a time, such as 30s; 0s: skip.
    overwrite
        Replace an existing report.md, edits included.

    Examples
    --------
    python -m triage.report CASE --out reports/NAME
    python -m triage.report runs/NAME --out reports
    0: written; also if the case is no bug to report
    2: wrong option or file, or a case of the run without a report: a line each says why
    """
    import sys

    from corpus import ledger as ledgers
    from fuzz.durations import parse_duration
    from fuzz.evaluator import ROOT
    from generators.errors import UserError

    seconds = 0.0 if explain == "0s" else parse_duration(explain, "explain")
    config = worker.configure(python, subject, device="")
    bugs = ledgers.load(ledger or ROOT / "corpus" / "ledger.yaml")
    cases = find_cases(what, bugs)
    failed = 0
    for name, case in cases:
        try:
            chosen = subject[0] if subject and not name else None
            lines = _report(case, out / name, config, chosen, seconds, bugs, overwrite=overwrite)
            print("\n".join(lines), flush=True)  # noqa: T201 - a command line prints its result
        except UserError as error:
            if len(cases) == 1:
                raise
            failed += 1
            print(f"{case}: no report: {error}", file=sys.stderr)  # noqa: T201 - the others are reported
    return 2 if failed else 0


def find_cases(what: Path, ledger: "Ledger") -> list[tuple[str, Path]]:
    """The case files to report about, and for those of a run the directory's name below --out. Raises UserError."""
    from fuzz.run_store import RESULTS_FILE
    from generators.errors import UserError
    from triage.cluster.clusters import load_clusters

    if (what / RESULTS_FILE).is_file():
        clusters = load_clusters([what], ledger)
        if not clusters:
            raise UserError(f"{what}: this run found nothing to report")
        return [(one.bug.id if one.bug else one.example.id, one.example.path) for one in clusters]
    if what.exists():
        return [("", what)]
    bug = next((bug for bug in ledger.bugs if bug.id == str(what)), None)
    if bug is None:
        raise UserError(f"{what}: not a case file, a run directory or an id in {ledger.path}")
    examples = ledger.examples(bug)
    if not examples:
        raise UserError(f"{ledger.path}: {bug.id} has no example to report about")
    return [("", examples[0])]


def _report(
    case: Path,
    out: Path,
    config: "WorkerConfig",
    chosen: str | None,
    explain_seconds: float,
    ledger: "Ledger",
    *,
    overwrite: bool,
) -> list[str]:
    from dataclasses import replace

    from corpus.entry import load
    from corpus.files import require_writable
    from fuzz.expectation import require_allowed
    from generators.errors import UserError
    from triage.report import repro
    from triage.report.build import CASE_FILE, NothingToReport, build

    entry = load(case)
    subject = chosen or (entry.subject if repro.is_attention(entry.subject) else None)
    if subject is not None:
        require_allowed(subject, config.named, str(case))
    if subject is not None and not repro.is_attention(subject):
        raise UserError(f"subject {subject!r} is not an attention function; omit --subject for torch.compile")
    config = replace(config, device=config.device or entry.device, named=())
    file = out / "report.md"
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists and may have your edits; use another --out, or --overwrite")
    require_writable(out, "--out")
    try:
        made = build(entry, config, out, subject=subject, explain_seconds=explain_seconds)
    except NothingToReport as why:
        for old in (
            file,
            out / "repro.py",
            out / CASE_FILE,
        ):  # those of an earlier report would seem to belong to this one
            old.unlink(missing_ok=True)
        return [f"{case}: {why}"]
    bug = ledger.find_case(entry.case.id)
    if bug is not None and not chosen:
        made = replace(made, title=bug.title)
    file.write_text(made.render(), encoding="utf-8")
    return [made.title, f"  {file}", f"  {out / 'repro.py'}"]


if __name__ == "__main__":
    enter(report, "triage.report")
