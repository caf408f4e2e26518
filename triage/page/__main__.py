"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

from pathlib import Path

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
    from triage.page.content import make_page, summarize

    file = out or run / "page.html"
    Results.open_readonly(run).close()
    require_writable(file, "--out", is_file=True)
    html, bugs = make_page(run, ledger, reports, file.parent)
    replace_file(file, html.encode())
    print(f"{file}: {summarize(bugs)}")  # noqa: T201 - a command line prints its result


if __name__ == "__main__":
    enter(page, "triage.page")
