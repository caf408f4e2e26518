"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import enter

if TYPE_CHECKING:
    from triage.page.groups import Group


def page(run: Path, *, out: Path | None = None, ledger: Path | None = None) -> None:
    """Write what a campaign found, reached and did as one HTML file, with pictures, to be read in a browser or printed.

    The campaign may be running still; nothing in its directory is changed but the page itself. Run it again for a newer one.

    Parameters
    ----------
    run
        Directory of a campaign, as given to `fuzz.run --out`.
    out
        The HTML file; by default page.html in the run directory.
    ledger
        The ledger of bugs; corpus/ledger.yaml of this checkout when left out.
    """
    file = out or run / "page.html"
    html, groups = made(run, ledger)
    _write(file, html)
    print(f"{file}: {said(groups)}")  # noqa: T201 - a command line prints its result


def made(run: Path, ledger: Path | None = None) -> "tuple[str, list[Group]]":
    """The page of a run directory, and what it lists. Raises UserError when it is none."""
    from corpus import ledger as ledgers
    from fuzz.evaluator import ROOT
    from fuzz.runs import Results
    from triage.page import campaign_view, finding_view
    from triage.page.groups import Met, groups_of
    from triage.page.timeline import Timeline
    from triage.rendering import render

    file = ledger or ROOT / "corpus" / "ledger.yaml"
    known = ledgers.load(file) if ledger is not None or file.exists() else ledgers.Ledger(file)
    results = Results.reading(run)
    try:
        timeline = Timeline.read(run)
        findings = [Met.of(row) for row in results.findings() if row.kind != "known" or row.count]
        groups = groups_of(run, findings, known)
        campaign = campaign_view.of(run, results, timeline)
    finally:
        results.close()
    shown = [finding_view.of(number, group) for number, group in enumerate(groups, 1)]
    return render("page.html.j2", campaign=campaign, findings=shown, said=said(groups)), groups


def said(groups: "list[Group]") -> str:
    """What was found in a few words: "43 findings of 6 bugs, 2 for somebody to look at"."""
    from fuzz.durations import format_count

    findings, news = sum(len(group.findings) for group in groups), sum(group.news for group in groups)
    of_bugs = f" of {format_count(len(groups), 'bug')}" if findings != len(groups) else ""
    known = f"{news} for somebody to look at" if news else "all of them known"
    return f"{format_count(findings, 'finding')}{of_bugs}, {known}" if groups else "nothing found"


def _write(file: Path, text: str) -> None:
    from generators.errors import UserError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise UserError(f"{file}: can't be written: {error.strerror}") from error


if __name__ == "__main__":
    enter(page, "triage.page")
