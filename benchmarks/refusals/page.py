"""The list of refusals in docs/coverage.md, from the tables and the saved counts."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.refusals.places import all_places
from fuzz.protocol import EAGER, REFERENCE
from fuzz.protocol.failures import Refusal
from generators.program.portability import OBSTACLES
from generators.reasons import Reason, Refuser

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/measured/refusals.json"
PAGE = ROOT / "docs/coverage.md"
BEGIN, END = "<!-- Made by `python -m benchmarks.refusals`. -->", "<!-- End of the list of refusals. -->"

_SHOWN = 6
"""How many operations of a rule are named."""
_RULES = {place.path for place in all_places() if place.path.startswith("program/ops/")}


def read_measured() -> dict[str, Any]:
    """The saved counts: by `before` or `after`, then by kind of program."""
    found: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    return found


def save(**measured: Any) -> None:
    """Add to the saved counts, or replace what has these names."""
    data = {**read_measured(), **measured}
    MEASURED.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_page() -> None:
    """Replace the list in docs/coverage.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{render(read_measured())}{END}{rest.partition(END)[2]}", encoding="utf-8")


def render(measured: dict[str, Any]) -> str:
    """The list as Markdown."""
    counts = [measured.get(when, {}) for when in ("before", "after")]
    lines = ["", *_tell_drawn(counts), "", *_list_lifted(measured)]
    lines += [*_list_reasons(counts, measured.get("programs", {})), *_list_faults(), *_list_narrow(measured)]
    lines += [*_list_obstacles(counts), *_list_not_judged(measured.get("judged", {"drawn": 0, "rows": {}}))]
    return "\n".join(lines) + "\n"


def _tell_drawn(counts: list[dict[str, Any]]) -> Iterator[str]:
    for when, one in zip(("before", "after"), counts, strict=True):
        if one:
            yield f"{when.capitalize()}: {one['modules']['drawn']} modules, {one['portable']['drawn']} portable cases."


def _list_lifted(measured: dict[str, Any]) -> Iterator[str]:
    """The reasons of before that are no more."""
    before = measured.get("before", {"modules": {"rows": {}}})
    gone = {*before["modules"]["rows"], *measured.get("programs", {})} - {*Reason.__members__, "torch"}
    shares = [f"{name} ({_share(before, 'modules', name)} of modules)" for name in sorted(gone)]
    if shares:
        yield from (f"Lifted since: {', '.join(shares)}.", "")


def _share(counts: dict[str, Any], kind: str, name: str) -> str:
    """The share of programs in which a candidate was turned away."""
    if not counts:
        return ""
    programs = counts[kind]["rows"].get(name, (0, 0))[1]
    return f"{programs / counts[kind]['drawn']:.2%}" if programs else "0"


def _shares(counts: Iterable[dict[str, Any]], name: str) -> str:
    return " | ".join(_share(one, kind, name) for one in counts for kind in ("modules", "portable"))


_SHARES = "modules before | portable before | modules after | portable after"


def _list_reasons(counts: list[dict[str, Any]], programs: dict[str, Any]) -> Iterator[str]:
    places = Counter((reason, place.path.rpartition("/")[2]) for place in all_places() for reason in place.reasons)
    for refuser in Refuser:
        yield from (
            f"### {refuser.value.capitalize()}",
            "",
            f"| reason | turned away | source | in | tried | {_SHARES} |",
        )
        yield "|---" * 9 + "|"
        for reason in Reason:
            if reason.why.refuser is not refuser:
                continue
            files = {file: number for (one, file), number in sorted(places.items(), key=str) if one is reason}
            where = ", ".join(f"{file} {number}" for file, number in files.items())
            where = where if len(files) < 5 else f"{len(files)} files, {sum(files.values())} places"
            source = reason.why.source or "**none**"
            answers = programs.get(reason.name, {}).get("answers", {})
            tried = ", ".join(f"{count} {answer}" for answer, count in sorted(answers.items()))
            row = (reason.name, reason.why.words, source, where, tried, _shares(counts, reason.name))
            yield f"| {' | '.join(row)} |"
        yield ""


def _list_faults() -> Iterator[str]:
    yield from ("### Right programs that are lost", "", "| reason | lost |", "|---|---|")
    for reason in Reason:
        lost = reason.why.lost or ("" if reason.why.source else "all: no source says why")
        if lost:
            yield f"| {reason.name} | {lost} |"
    yield ""


def _list_narrow(measured: dict[str, Any]) -> Iterator[str]:
    """The rules of operations that refuse calls which torch takes."""
    operations, before = measured.get("operations"), measured.get("operations_before")
    if operations is None:
        return
    known = {place.key: place for place in all_places() if Reason.TYPES in place.reasons and place.path in _RULES}
    answers = {key: one for key, one in operations["places"].items() if key in known}
    narrow = {key: one for key, one in answers.items() if one["taken"]}
    yield from (
        "### Rules of operations that are narrower than torch's",
        "",
        (
            f"Of {len(known)} rules, {len(answers) - len(narrow)} refuse only drawn calls that "
            f"torch {operations['torch']} refuses too, {len(narrow)} also refuse some that it takes, and draws do not "
            "meet the others. All tensors have elements."
            + (f" Before: {before['narrow']} of {before['rules']} rules." if before else "")
        ),
        "",
        "| rule | operations | for example |",
        "|---|---|---|",
    )
    for key, one in narrow.items():
        kinds = [*one["taken"]]
        names = ", ".join(kinds[:_SHOWN]) + (f" and {len(kinds) - _SHOWN} others" if len(kinds) > _SHOWN else "")
        example = next(iter(one["taken"].values())).replace("|", "\\|")
        yield f"| {known[key].path.rpartition('/')[2]}: {_plain(known[key].text)} | {names} | `{example}` |"
    yield from ("", "Of calls with a single dtype, torch takes these, and the table of operations does not:", "")
    of_dtype = defaultdict[str, list[str]](list)
    for key, one in narrow.items():
        if known[key].function == "infer" and known[key].path.endswith("spec.py"):
            for kind, dtypes in one["dtypes"].items():
                for dtype in dtypes:
                    of_dtype[dtype].append(kind)
    for dtype, kinds in sorted(of_dtype.items()):
        yield f"- {dtype}: {', '.join(kinds)}"
    yield ""


def _plain(text: str) -> str:
    """A message without the syntax of Python."""
    return re.sub(r"\{[^}]*\}", "...", text.removeprefix("f")[1:-1]).replace("|", "\\|")


def _list_obstacles(counts: list[dict[str, Any]]) -> Iterator[str]:
    yield from ("### Compilers of inference programs", "", f"| obstacle | turned away because | {_SHARES} |")
    yield "|---" * 6 + "|"
    for name, row in OBSTACLES.items():
        taken = f", unless the compiler declares `{row.ability}`" if row.ability else ""
        yield f"| {name} | {row.words}{taken} | {_shares(counts, f'obstacle {name}')} |"
    yield ""


def _list_not_judged(judged: dict[str, Any]) -> Iterator[str]:
    """The refusals of workers and subjects."""
    words = {f"worker {EAGER}": "eager raises", f"worker {REFERENCE}": "the float64 reference or the noise raises"}
    words |= {one.value: one.label or "the subject's own words" for one in Refusal}
    yield from ("### Workers and subjects", "")
    if not judged["drawn"]:
        yield from ("Not counted yet (`--judged`).", "")
    yield from (f"| by | because | of {judged['drawn']} modules |", "|---|---|---|")
    for name, text in words.items():
        count = judged["rows"].get(name, 0) if judged["drawn"] else ""
        yield f"| {name.replace('_', ' ')} | {text} | {count} |"
    yield ""
