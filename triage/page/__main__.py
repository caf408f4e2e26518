"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

from pathlib import Path
from typing import Any

from fuzz.cli import enter


def page(run: Path, *, out: Path | None = None, ledger: Path | None = None, reports: Path | None = None) -> None:
    """Write one HTML file about a campaign: its findings, and what its cases reached.

    The campaign may still be running; nothing in its directory is changed except the page itself.

    Parameters
    ----------
    run
        Directory of a campaign, as given to `fuzz.run --out`.
    out
        The HTML file; by default page.html in the run directory.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    reports
        Directory of reports to link to, as given to `triage.report RUN --out`; by default docs/reports of this
        checkout.

    Examples
    --------
    python -m triage.page runs/NAME
    python -m triage.page runs/NAME --out page.html
    """
    from corpus.files import replace_file, require_writable
    from fuzz.run_store import Results

    file = out or run / "page.html"
    Results.open_readonly(run).close()
    require_writable(file, "--out", is_file=True)
    html, bugs = make_page(run, ledger, reports, file.parent)
    replace_file(file, html.encode())
    print(f"{file}: {summarize(bugs)}")  # noqa: T201 - a command line prints its result


def make_page(
    run: Path, ledger: Path | None = None, reports: Path | None = None, beside: Path | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The page of a run directory, and what it lists; links are relative to `beside`, by default the run directory.

    Raises UserError when it is none.
    """
    import os
    from contextlib import closing

    from corpus import ledger as ledgers
    from fuzz.evaluator import ROOT
    from fuzz.run_store import Results
    from triage.page.campaign_view import describe_campaign
    from triage.page.findings import list_bugs
    from triage.rendering import render

    file = ledger or ROOT / "corpus" / "ledger.yaml"
    known = ledgers.load(file) if ledger is not None or file.exists() else ledgers.Ledger(file)
    with closing(Results.open_readonly(run)) as results:
        bugs = list_bugs(run, results, known, reports or ROOT / "docs" / "reports")
        for bug in bugs:
            bug["report"] = bug["report"] and Path(os.path.relpath(bug["report"], beside or run)).as_posix()
        campaign = describe_campaign(run, results)
    return render("page.html.j2", campaign=campaign, findings=bugs, summary=summarize(bugs)), bugs


def summarize(bugs: list[dict[str, Any]]) -> str:
    """What was found in a few words: "2 new findings, 3 known bugs met again"."""
    from fuzz.durations import format_count

    news = sum(bug["news"] for bug in bugs)
    known = sum(not bug["news"] and bug["status"] != "internal" for bug in bugs)
    return f"{format_count(news, 'new finding')}, {format_count(known, 'known bug')} met again"


if __name__ == "__main__":
    enter(page, "triage.page")
