"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.door import enter

if TYPE_CHECKING:
    from triage.groups import Group


def page(run: Path, *, out: Path | None = None) -> None:
    """Write what a campaign found, reached and did as one HTML file, with pictures, to be read in a browser or printed.

    The campaign may be running still; nothing in its directory is changed but the page itself. Run it again for a newer one.

    Parameters
    ----------
    run
        Directory of a campaign, as given to `fuzz.run --out`.
    out
        The HTML file; by default page.html in the run directory.
    """
    from fuzz.campaign.budget import counted

    file = out or run / "page.html"
    html, groups = made(run)
    _write(file, html)
    news = sum(group.news for group in groups)
    print(f"{file}: {counted(len(groups), 'finding')}, {news} of them new")  # noqa: T201 - a command line prints its result


def made(run: Path) -> "tuple[str, list[Group]]":
    """The page of a run directory, and what it lists. Raises UserError when it is none."""
    from fuzz.campaign.results import Results
    from triage import campaign_view, finding_view
    from triage.groups import Met, one_each
    from triage.rendering import render
    from triage.timeline import Timeline

    results = Results.reading(run)
    try:
        timeline = Timeline.read(run)
        groups = one_each([Met.of(row) for row in results.findings() if row.kind != "known" or row.count])
        campaign = campaign_view.of(run, results, timeline)
    finally:
        results.close()
    findings = [finding_view.of(number, group) for number, group in enumerate(groups, 1)]
    return render("page.html.j2", campaign=campaign, findings=findings), groups


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
