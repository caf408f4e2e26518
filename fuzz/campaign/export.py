"""`--json` and `--junit`: the run and its findings for other programs, written anew with every finding and at the end.

docs/nightly.md describes the fields.
"""

import json
from typing import Any
from xml.etree import ElementTree as ET

from corpus import entry as corpus_entry
from corpus.files import replace_file
from fuzz.campaign.known_bugs import KnownBugs, read_recorded_result
from fuzz.campaign.options import Options
from fuzz.campaign.stats import Statistics
from fuzz.cli import escape_controls
from fuzz.durations import format_count
from fuzz.events import CampaignStarted, Event, FindingSaved, Listener
from fuzz.expectation import list_commands
from fuzz.protocol import Verdict
from fuzz.protocol.codec import encode
from fuzz.protocol.render import describe
from fuzz.run_store import FindingRow, Results
from fuzz.subjects import is_user_function

FORMAT = 1
_FAILURES = ("new", "regression")


class Export(Listener):
    """Writes the files. It comes after `statistics` on the bus."""

    def __init__(self, options: Options, results: Results, statistics: Statistics, known: KnownBugs) -> None:
        self._json, self._junit = options.json, options.junit
        self._results, self._statistics, self._known = results, statistics, known

    def on_event(self, event: Event, when: float) -> None:  # noqa: ARG002 - a listener's signature
        """Write at the start, when a kill may follow, and with each finding."""
        if isinstance(event, CampaignStarted | FindingSaved):
            self.close()

    def close(self) -> None:
        """Write, unless the campaign was refused."""
        if self._statistics.started is None or not (self._json or self._junit):
            return
        data = describe_run(self._results, self._statistics, self._known)
        if self._json is not None:
            replace_file(self._json, f"{json.dumps(data, indent=1)}\n".encode())
        if self._junit is not None:
            replace_file(self._junit, format_junit(data))


def describe_run(results: Results, statistics: Statistics, known: KnownBugs) -> dict[str, Any]:
    """The run and its findings as JSON-ready data; findings and `waiting` are those of all runs in its directory."""
    started = statistics.started
    assert started is not None
    run = {name: encode(getattr(started, name)) for name in ("torch", "python", "device", "seed", "budget", "subjects")}
    return {
        "format": FORMAT,
        "run": {
            **run,
            "against": started.against or None,
            "directory": started.out,
            "ended": statistics.ended or None,
            "seconds": round(statistics.elapsed, 1),
            "cases": statistics.cases,
            "rejected": statistics.rejected.total(),
            "waiting": results.outcomes().get("waiting", 0),
            "faults": len(statistics.faults),
        },
        "findings": [
            _describe_finding(row, known, started) for row in results.findings() if row.kind != "known" or row.count
        ],
    }


def _describe_finding(row: FindingRow, known: KnownBugs, started: CampaignStarted) -> dict[str, Any]:
    entry, status = corpus_entry.loads(row.entry, row.file), row.kind
    bug = known.bugs.get(row.case_id)
    if status == "new" and row.result.verdict is Verdict.EAGER_SUSPECT and all(map(is_user_function, started.subjects)):
        status = "eager"
    elif status == "new":
        bug = known.find_watched(entry.case, known.symptom(read_recorded_result(entry), entry.case))
        status = "regression" if bug or started.against else "new"
    return {
        "id": row.case_id,
        "status": status,
        "verdict": row.result.verdict.value,
        "subject": row.result.subject,
        "title": describe(row.result) or row.result.verdict.explanation,
        "operations": len(entry.case.ops),
        "count": row.count,
        "bug": {"id": bug.id, "title": bug.title, "status": str(bug.status)} if bug else None,
        "file": row.file,
        "commands": list_commands(row.file, row.case_id, row.result.subject),
    }


def format_junit(data: dict[str, Any]) -> bytes:
    """`describe_run` as JUnit XML: a test for the run, which fails by faults of attnfuzz, and one for each finding."""
    run, findings = data["run"], data["findings"]
    failures = sum(finding["status"] in _FAILURES for finding in findings)
    counts = {"tests": 1 + len(findings), "failures": failures, "errors": int(run["faults"] > 0)}
    counts["skipped"] = len(findings) - failures
    attributes = {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites", attributes)
    suite = ET.SubElement(root, "testsuite", {"name": "attnfuzz", "time": str(run["seconds"]), **attributes})
    test = ET.SubElement(suite, "testcase", {"classname": "attnfuzz", "name": "run", "time": str(run["seconds"])})
    if run["faults"]:
        ET.SubElement(test, "error", {"message": f"{format_count(run['faults'], 'case')} could not be judged"})
    ET.SubElement(test, "system-out").text = json.dumps(run, indent=1)
    for finding in findings:
        name = f"{finding['verdict']}-{finding['id']}"
        test = ET.SubElement(suite, "testcase", {"classname": f"attnfuzz.{finding['subject']}", "name": name})
        bug = f" ({finding['bug']['title']})" if finding["bug"] else ""
        kind = "failure" if finding["status"] in _FAILURES else "skipped"
        child = ET.SubElement(test, kind, {"message": f"{finding['status']}: {finding['title']}{bug}"})
        child.text = "\n".join([finding["file"], *finding["commands"]])
    return escape_controls(ET.tostring(root, encoding="unicode", xml_declaration=True)).encode()
