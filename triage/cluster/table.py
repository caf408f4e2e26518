"""Clusters as text for stdout."""

import shlex
from collections.abc import Sequence

from corpus.ledger import Ledger
from fuzz.durations import format_count
from fuzz.expectation import reproduce_lines
from triage.cluster.clusters import Cluster


def table(clusters: Sequence[Cluster], ledger: Ledger) -> str:
    """A line for the whole, then each cluster in a few lines."""
    findings = sum(len(one.findings) for one in clusters)
    if not findings:
        return "no findings"
    missing = sum(one.bug is None for one in clusters)
    back = sum(bool(one.back_in) for one in clusters)
    head = f"{format_count(findings, 'finding')} of {format_count(len(clusters), 'root cause')}, "
    head += f"{missing} of them not in {ledger.path}" if missing else f"all of them in {ledger.path}"
    head += f"; {format_count(back, 'fixed bug')} {'is' if back == 1 else 'are'} back" if back else ""
    return "\n\n".join([head, *("\n".join(_lines(number, one)) for number, one in enumerate(clusters, 1))])


def status_text(one: Cluster) -> str:
    """What the ledger says of a cluster, and what that means now."""
    if one.back_in:
        return f"regression: fixed in {one.bug.status.about if one.bug else ''} and back in {one.back_in}"
    if one.bug is None:
        return "not in the ledger" + (" (add it with --update)" if not one.is_open else "")
    return "new (not reported yet)" if one.bug.status.kind == "new" else str(one.bug.status)


def _lines(number: int, one: Cluster) -> list[str]:
    indent = " " * (len(str(number)) + 2)
    key = one.keys[0]
    parts = f" ({', '.join(one.parts)})" if one.parts and one.parts != (key.part,) else ""
    why = next((m.why_open for m in one.members if m.why_open), "")
    cause = f"not known: {why}" if one.is_open else f"{key}{parts}"
    days = " to ".join(dict.fromkeys(filter(None, (one.first_seen, one.last_seen))))
    seen = ", ".join(
        [
            format_count(one.count, "finding"),
            f"met {one.met}x",
            *([days] if days else []),
            *([f"torch {', '.join(one.versions)}"] if one.versions else []),
        ]
    )
    example = one.example
    lines = [
        f"status   {status_text(one)}",
        f"cause    {cause}",
        f"seen     {seen}",
        f"example  {shlex.quote(str(example.path))}, {format_count(len(example.entry.case.ops), 'operation')}",
    ]
    return [
        f"{number}. {one.title}",
        *(indent + line for line in lines),
        *reproduce_lines(str(example.path), example.id, example.entry.subject, indent),
    ]
