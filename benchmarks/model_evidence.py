"""Which released models show the bugs of the ledger, and which reach their code: `seen_in` and `reached_in`.

    python -m benchmarks.model_evidence models.json... --python old/bin/python --python new/bin/python

Reads surveys of `benchmarks.models`. A finding shows a bug if experiments find the bug's cause. A model reaches a bug
if one of its programs, or a variant of it, has a rewrite or an operation of `find_code`.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.causes import Part, Stage
from corpus.entry import load
from corpus.ledger import Bug, Ledger
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.bug_identity import attention_patterns, bug_relevant_rewrites
from fuzz.protocol import SubjectResult
from fuzz.versions import public_version
from triage.cluster.clusters import cluster
from triage.cluster.findings import attribute_findings, gather

Row = Mapping[str, Any]


def find_code(bug: Bug, examples: Iterable[SubjectResult]) -> frozenset[str]:
    """The rewrites and operations of a bug: those of its failing examples.

    | cause                          | code                                                |
    |--------------------------------|-----------------------------------------------------|
    | names an operation of ATen     | the operation                                       |
    | is a rewrite that is measured  | the patterns that are proven wrong                  |
    | is another attention pattern   | the patterns that failing examples applied          |
    | names another graph pass       | that rewrite, if failing examples applied it        |
    | is anything else               | none: every program runs it, or no model has it     |
    """
    part = bug.cause.part
    if part.startswith("aten."):
        return frozenset([part])
    if bug.cause.stage not in (Stage.JOINT_PASSES, Stage.GRAPH_PASSES):
        return frozenset()
    failing = [one for one in examples if one.verdict.is_finding]
    wrong = bug_relevant_rewrites(rewrite.pattern for one in failing for rewrite in one.wrong_rewrites)
    applied = bug_relevant_rewrites(name for one in failing for name in one.applied_rewrites)
    if part == Part.ATTENTION_PATTERNS:
        return wrong or attention_patterns(applied)
    return frozenset([part]) & applied


def list_results(rows: Iterable[Row]) -> Iterator[tuple[str, Row, Row]]:
    """The name of the model, the judged case and each result."""
    for row in rows:
        for case in row.get("verdicts", ()):
            yield from ((row["name"], case, one) for one in case["results"])


def list_reaching(rows: Iterable[Row], code: frozenset[str]) -> tuple[str, ...]:
    """The models with a program that has any of these rewrites and operations, whatever the spelling of attention."""
    reaching = (name for name, _, one in list_results(rows) if code & {*one["rewrites"], *one["coverage"]})
    return tuple(sorted({name.partition("@")[0] for name in reaching}))


def choose_findings(rows: Iterable[Row]) -> dict[str, list[tuple[str, Path]]]:
    """By version of torch, a line about each finding, and its file. Errors with one text are one finding; the files
    of models nearer to the released model come first."""
    found = [
        (one["torch"], len(case["case"]), f"{name}, {case['case']}", one)
        for name, case, one in list_results(rows)
        if "file" in one
    ]
    chosen: dict[str, list[tuple[str, Path]]] = {}
    for torch, _, line, one in sorted(found, key=lambda item: item[:3]):
        chosen.setdefault(torch, []).append((line, Path(one["file"])))
    return chosen


def list_shown(
    lines: Iterable[tuple[str, Path]], messages: Mapping[Path, str], config: WorkerConfig, ledger: Ledger
) -> Iterator[tuple[Bug | None, str]]:
    """The bug of each finding, None if the ledger lacks it."""
    lines = list(lines)
    alike: dict[str, Path] = {}  # the finding that stands for those with the same error
    for _, path in lines:
        entry = load(path)
        text = messages[path] if entry.found and entry.found.verdict.endswith("error") else str(path)
        alike.setdefault(text, path)
        messages = {**messages, path: text}
    made = cluster(attribute_findings(gather([*alike.values()]), config, ledger=ledger), ledger)
    bugs = {finding.path: one.bug for one in made for finding in one.findings}
    for line, path in lines:
        yield bugs.get(alike[messages[path]]), line


def nearest(lines: Iterable[str]) -> tuple[str, ...]:
    """A line for each architecture, the shortest, which is nearest to the model."""
    ordered = sorted(set(lines), key=lambda line: (line.partition(",")[0].partition("@")[0], len(line), line))
    groups = itertools.groupby(ordered, key=lambda line: line.partition(",")[0].partition("@")[0])
    return tuple(next(group) for _, group in groups)


def judge_examples(bug: Bug, ledger: Ledger, evaluators: Iterable[Evaluator]) -> Iterator[SubjectResult]:
    """The results of its examples for the CPU in each version."""
    entries = [entry for path in ledger.examples(bug) if (entry := load(path)).device != "cuda"]
    for evaluator, entry in itertools.product(evaluators, entries):
        yield evaluator.ask(Question(entry.case, (entry.subject,))).only


def main() -> None:
    """Bring the ledger up to date with surveys."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surveys", nargs="+", type=Path)
    parser.add_argument("--python", action="append", default=[], help="an interpreter for each torch of the surveys")
    parser.add_argument("--ledger", type=Path, default=ledgers.LEDGER)
    options = parser.parse_args()
    rows = [row for file in options.surveys for row in json.loads(file.read_text(encoding="utf-8"))]
    ledger = ledgers.load(options.ledger)
    configs = [WorkerConfig(python=python, timeout=90.0) for python in options.python or [sys.executable]]
    evaluators = [open_evaluator(config) for config in configs]
    seen: dict[str, list[str]] = {bug.id: [*bug.seen_in] for bug in ledger.bugs}
    try:
        versions = {public_version(one.hello.torch): one.config for one in evaluators}
        code = {bug.id: find_code(bug, judge_examples(bug, ledger, evaluators)) for bug in ledger.bugs}
    finally:
        for one in evaluators:
            one.close()
    messages = {Path(one["file"]): one["message"] for _, _, one in list_results(rows) if "file" in one}
    for torch, lines in choose_findings(rows).items():
        if torch not in versions:
            print(f"{len(lines)} findings of torch {torch}: no --python has it")
            continue
        for bug, line in list_shown(lines, messages, replace(versions[torch], cache=None), ledger):
            if bug is None:
                print(f"not in the ledger, torch {torch}: {line}")
            else:
                seen[bug.id].append(line)
    reached = {bug.id: list_reaching(rows, code[bug.id]) for bug in ledger.bugs}
    bugs = tuple(replace(bug, seen_in=nearest(seen[bug.id]), reached_in=reached[bug.id]) for bug in ledger.bugs)
    ledgers.save(replace(ledger, bugs=bugs))
    for bug in bugs:
        print(f"{bug.id}: shown by {len(bug.seen_in)}, reached by {len(bug.reached_in)} ({', '.join(code[bug.id])})")


if __name__ == "__main__":
    main()
