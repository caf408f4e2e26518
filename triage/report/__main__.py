"""Turn a case into a report: `python -m triage.report CASE --out DIR`. Nothing is ever sent."""

from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter


def report(
    what: Path | None = None,
    *,
    out: Path,
    module: str | None = None,
    ledger: Path | None = None,
    subject: list[str] | None = None,
    python: str | None = None,
    worker: WorkerOptions = DEFAULT_WORKER,
    explain: str = "60s",
    overwrite: bool = False,
) -> int:
    """Write report.md (the draft of an issue) and test_regression.py (a script that needs only torch, with a test for
    PyTorch) for a case.

    For a run directory, write one of each for every root cause that `triage.cluster` found and for every finding
    without a known cause.

    The case is run again with every backend from eager to Inductor, and the script is run. Verdicts that are no bug of
    torch.compile get no report, and the command says why: rounding, an unstable program, NaN by design, and casts
    elided by design.

    A case about an attention function gets a report for its author, and a script that imports the function. A bug of
    another compiler is reported to its project: with the fields of its form, and where its runtime is at fault, with
    the model, the data, and reproduce.py, which needs no torch.

    Parameters
    ----------
    what
        A case file, the id of a bug in the ledger, or a run directory.
    module
        package.module:factory, as for fuzz.compare, or a released model: report about its first block that fails when
        it is compiled.
    out
        Directory for report.md and test_regression.py; created if missing. For a run, each report has a subdirectory.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    subject
        The attention function to report about; by default the case's own. A function of yours, package.module:function,
        must be named here because it is imported. Findings of a run keep the subject they were found with. For a run
        the option only allows imports, and may be repeated.
    python
        The interpreter, and so the torch version, to report about; by default the current one.
    explain
        How long to search for the cause, the line and the conditions of the failure, such as 30s. A report names the
        searches that this cuts short. Experiments on the cause take up to 60s. 0s: neither line nor conditions.
    overwrite
        Replace an existing report.md, edits included.

    Examples
    --------
    python -m triage.report CASE --out reports/NAME
    python -m triage.report --module my_model:block --out reports/NAME
    0: written, or the case is no bug to report
    2: wrong option or file, or a case of the run has no report; a line for each says why
    """
    import sys

    from corpus import ledger as ledgers
    from fuzz.ask.transport import CompilersOff
    from fuzz.durations import parse_duration
    from fuzz.module_comparison import open_comparison, save_wrong_block
    from generators.errors import UserError
    from triage.report.build import find_cases, report_case

    seconds = 0.0 if explain == "0s" else parse_duration(explain, "explain")
    config = worker.configure(python, subject, device="")
    bugs = ledgers.load(ledger or ledgers.LEDGER)
    if (what is None) == (module is None):
        raise UserError("name a case file, a bug or a run, or --module")
    if module is not None:
        own = worker.configure(python, subject)
        with open_comparison([own], module, ["inductor"], out) as comparison:
            what = save_wrong_block(comparison)
    if what is None:
        print(f"{module}: no block fails when it is compiled")  # noqa: T201 - a command line prints its result
        return 0
    cases = find_cases(what, bugs)
    failed = 0
    for number, (name, case) in enumerate(cases, 1):
        if len(cases) > 1:
            sys.stderr.write(f"report {number} of {len(cases)}: {case}\n")
        try:
            chosen = subject[0] if subject and not name else None
            lines = report_case(case, out / name, config, chosen, seconds, bugs, overwrite)
            print("\n".join(lines), flush=True)  # noqa: T201 - a command line prints its result
        except UserError as error:
            if len(cases) == 1 or isinstance(error, CompilersOff):
                raise
            failed += 1
            print(f"{case}: no report: {error}", file=sys.stderr)  # noqa: T201 - other cases are still reported
    return 2 if failed else 0


if __name__ == "__main__":
    enter(report, "triage.report")
