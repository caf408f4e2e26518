"""What the page of a campaign says of one finding, or of several of one cause."""

import base64
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fuzz.localisation import where_text
from fuzz.protocol import SubjectResult, Verdict
from fuzz.relations import explained, is_of_another_call
from fuzz.subjects import is_named
from generators.program.emit import source
from triage.page.groups import Group, Met
from triage.report import picture

_ADDRESSES = ("https://", "http://")
_OTHERS = 30
"""So many further findings of a group are listed."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """One group of findings, by its first: texts as the page shows them. `about`, or `link`: what goes with the status;
    `verdicts`: those of all."""

    anchor: str
    title: str
    status: str
    about: str
    link: str
    news: bool
    verdict: str
    verdicts: str
    meaning: str
    subject: str
    count: int
    first_seen: str
    last_seen: str
    message: str
    note: Sequence[str]
    where: str
    numbers: Sequence[tuple[str, str]]
    fired: Sequence[str]
    program: str
    commands: Sequence[str]
    case_name: str
    case_file: str
    others: Sequence[tuple[str, str]]
    others_left: int
    image: str
    image_text: str


def of(number: int, group: Group) -> FindingView:
    """The group as a page shows it; `number`: its place there."""
    first = group.findings[0]
    status, _, about = group.status.partition(" ")
    result, case = first.row.result, first.entry.case
    drawn = picture.png(case, result, narrow=True)
    others = [(met.row.file, met.title) for met in group.findings[1:]]
    return FindingView(
        anchor=f"finding-{number}",
        title=group.title,
        status=words(status),
        about="" if about.startswith(_ADDRESSES) else about,
        link=about if about.startswith(_ADDRESSES) else "",
        news=group.news,
        verdict=words(result.verdict),
        verdicts=", ".join(dict.fromkeys(words(met.row.result.verdict) for met in group.findings)),
        meaning=result.verdict.explanation,
        subject=result.subject,
        count=group.count,
        first_seen=when(group.first_seen),
        last_seen=when(group.last_seen),
        message=result.message,
        note=[*group.note, *filter(None, [explained(result.message)])],
        where=where_text(case, result.where),
        numbers=numbers_of(result),
        fired=result.fired,
        program=source(case).strip(),
        commands=commands_for(first),
        case_name=Path(first.row.file).name,
        case_file=first.row.entry.strip(),
        others=others[:_OTHERS],
        others_left=max(0, len(others) - _OTHERS),
        image=f"data:image/png;base64,{base64.b64encode(drawn).decode()}" if drawn else "",
        image_text=picture.described(case, result),
    )


def words(name: str | Verdict) -> str:
    """A verdict, outcome or the like as words: "wrong result"."""
    return str(name).replace("_", " ")


def when(seconds: float) -> str:
    """A time as a person reads it, in UTC, so that it is the same wherever the page is made."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def numbers_of(result: SubjectResult) -> list[tuple[str, str]]:
    """The errors against float64, and what decided, as pairs of words and numbers."""
    numbers, rows = result.numbers, []
    of_case = ", of the case's own call, which is right" if is_of_another_call(result.message) else ""
    finite = ", where it is finite" if result.verdict is Verdict.NONFINITE else ""
    mine = "the subject" if result.verdict is Verdict.EAGER_SUSPECT or "peer_error" in numbers else "compiled"
    for key, who in (("eager_error", "eager"), ("peer_error", "a right kernel"), ("compiled_error", mine)):
        if key in numbers and not (key == "compiled_error" and result.subject == "eager"):
            rows.append((f"largest error of {who}{of_case}{finite}", _number(numbers[key])))
    if "scale" in numbers:
        rows.append(("largest value", _number(numbers["scale"])))
    if "ratio" in numbers and "limit" in numbers and not of_case:
        rows.append(
            ("worst row, in units of what rounding explains", f"{numbers['ratio']:.3g} (limit {numbers['limit']:.3g})")
        )
    if numbers.get("rows_wrong"):
        rows.append(
            ("rows that are wrong", f"{numbers['rows_wrong']:.0f} of {numbers.get('rows_total', math.nan):.0f}")
        )
    if result.same is not None:
        rows.append(("torch._dynamo.utils.same", "True" if result.same else "False: it refuses the difference"))
    return rows


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "not finite"


def commands_for(met: Met) -> list[str]:
    """What a person types in a checkout to see it again, and to get a report of it."""
    file, subject = shlex.quote(met.row.file), met.row.result.subject
    # Only the person at the keyboard may have a function of theirs imported.
    allowed = f" --subject {shlex.quote(subject)}" if is_named(subject) else ""
    return [
        f"python -m fuzz.replay {file}{allowed}",
        f"python -m triage.report {file}{allowed} --out reports/{met.row.case_id}",
    ]
