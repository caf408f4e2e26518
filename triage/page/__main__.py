"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import enter

if TYPE_CHECKING:
    from triage.page.findings import Group


def page(run: Path, *, out: Path | None = None, ledger: Path | None = None) -> None:
    """Write one HTML file about a campaign: its findings with pictures, its coverage and its progress.

    The campaign may still be running; nothing in its directory is changed except the page itself.

    Parameters
    ----------
    run
        Directory of a campaign, as given to `fuzz.run --out`.
    out
        The HTML file; by default page.html in the run directory.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    """
    from corpus.file_edits import replace_file

    file = out or run / "page.html"
    html, groups = make_page(run, ledger)
    replace_file(file, html.encode())
    print(f"{file}: {summarize(groups)}")  # noqa: T201 - a command line prints its result


def make_page(run: Path, ledger: Path | None = None) -> "tuple[str, list[Group]]":
    """The page of a run directory, and what it lists. Raises UserError when it is none."""
    from contextlib import closing

    from corpus import ledger as ledgers
    from fuzz.evaluator import ROOT
    from fuzz.run_store import Results
    from triage.page.campaign_view import describe_campaign
    from triage.page.findings import StoredFinding, describe_group, group_findings
    from triage.page.timeline import Timeline
    from triage.rendering import render

    file = ledger or ROOT / "corpus" / "ledger.yaml"
    known = ledgers.load(file) if ledger is not None or file.exists() else ledgers.Ledger(file)
    with closing(Results.open_readonly(run)) as results:
        timeline = Timeline.read(run)
        findings = [StoredFinding.read(row) for row in results.findings() if row.kind != "known" or row.count]
        groups = group_findings(run, findings, known)
        campaign = describe_campaign(run, results, timeline)
    shown = [describe_group(number, group) for number, group in enumerate(groups, 1)]
    return render("page.html.j2", campaign=campaign, findings=shown, summary=summarize(groups)), groups


def summarize(groups: "list[Group]") -> str:
    """What was found in a few words: "43 findings of 6 bugs, 2 need triage"."""
    from fuzz.durations import format_count

    if not groups:
        return "no findings"
    findings, news = sum(len(group.findings) for group in groups), sum(group.news for group in groups)
    bugs = f" of {format_count(len(groups), 'bug')}" if findings != len(groups) else ""
    return f"{format_count(findings, 'finding')}{bugs}, {f'{news} need triage' if news else 'all known'}"


if __name__ == "__main__":
    enter(page, "triage.page")
