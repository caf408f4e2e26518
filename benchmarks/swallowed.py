"""Whether the memory of known bugs throws away failures of other bugs.

    python -m benchmarks.swallowed (--made-up | --pairs | --own) [--python PYTHON] [--json FILE] [--only PREFIX]

--made-up: a defect that perturbs every compiled gradient is planted in torch, so each training case of
sample(991, 0..1499) fails, also under every experiment. With the whole ledger loaded, none may be called known, but
where it fails so without the defect too.

--pairs: for each ordered pair of a listed bug with its example, and another defect, a campaign that knows the first
alone gets a real failure of the second. The failure may not be called known. Other defects are the other entries of the
ledger, and the mistakes planted in torch and in kernels (benchmarks/attribution.py). Each failure is run once. Where it
looks like the listed bug, the experiments of that bug run on it.

--own: each example of the ledger fails again. Its bug, as a campaign knows it, must recognise it by its experiments.

Mistakes that never become a failure, since an excuse covers them, are measured by benchmarks/excuses.py.

Exits with 1 if a failure of another bug is called known, or an example is not recognised.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.attribution import known_findings, planted
from corpus import entry as corpus_entry
from corpus.entry import Entry, Expectation
from corpus.ledger import LEDGER, Ledger
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache, Asker, Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.decide import load_ledger
from fuzz.attribution.study import Study
from fuzz.known_bugs import KnownBugs, find_decided, read_known_bugs
from fuzz.protocol import SubjectResult
from generators.program.case import Case
from generators.sampling.sample import sample

SEED, CASES = 991, 1500
CHEAPEST = ("passes", "inductor")


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect with a case that shows it. `bug`: its entry in the ledger, or ""."""

    name: str
    entry: Entry
    bug: str = ""
    plant: str = ""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--made-up", action="store_true", help="perturb all gradients of sampled cases")
    action.add_argument("--pairs", action="store_true", help="pairs of a listed bug and another defect")
    action.add_argument("--own", action="store_true", help="each listed bug and its own examples")
    parser.add_argument("--python", default=sys.executable, help="interpreter, and so torch version, of the worker")
    parser.add_argument("--only", default="", metavar="PREFIX", help="defects whose name begins so")
    parser.add_argument(
        "--subject", default="passes", help="of --made-up; with passes_recomputing more experiments apply"
    )
    parser.add_argument("--cases", type=int, default=CASES, help="of --made-up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result of each case or pair")
    options = parser.parse_args()
    config = WorkerConfig(python=options.python, device="cpu", timeout=120.0, memory_mib=8192)
    if options.made_up:
        rows = list(run_made_up(config, options.cases, options.subject))
    else:
        rows = list((run_own if options.own else run_pairs)(config, options.only))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    outcomes = Counter(str(row["outcome"]) for row in rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()), f"of {len(rows)}")
    return int(bool({"swallowed", "not recognised"} & outcomes.keys()))


def run_made_up(config: WorkerConfig, cases: int, subject: str) -> Iterator[dict[str, Any]]:
    """The outcome of each training case."""
    ledger = load_ledger(LEDGER)
    recognised: list[tuple[Case, dict[str, Any]]] = []
    with planted("gradient_perturbed"), open_evaluator(config) as worker:
        evaluator = AnswerCache(worker)
        known_bugs = read_known_bugs(ledger, evaluator.hello, evaluator.hello.packages)
        for index in range(cases):
            case = replace(sample(SEED, index), settings=())
            if not case.training:
                continue
            result = evaluator.ask(Question(case, (subject,))).only
            if not result.verdict.is_finding:
                yield {"case": index, "outcome": "not a failure", "verdict": result.verdict}
                continue
            entry = Entry(case, expect=Expectation("known", subject=subject))
            outcome, bug = explain(entry, result, known_bugs, evaluator)
            print(f"{index}: {result.verdict}: {outcome} {bug}", flush=True)
            row = {"case": index, "outcome": outcome, "bug": bug, "verdict": result.verdict}
            if outcome == "swallowed":
                recognised.append((case, row))
            else:
                yield row
    with open_evaluator(config) as worker:
        for case, row in recognised:
            if worker.ask(Question(case, (subject,))).only.verdict == row["verdict"]:
                row["outcome"] = "fails without the defect"
            print(f"{row['case']}: {row['outcome']}: {row['bug']}", flush=True)
            yield row


def explain(entry: Entry, result: SubjectResult, known_bugs: KnownBugs, evaluator: Asker) -> tuple[str, str]:
    """The outcome for a failure, and the id of the bug that it is called."""
    symptom = known_bugs.symptom(result, entry.case)
    alike, study = known_bugs.list_alike(symptom), Study(evaluator, entry, result.subject, result)
    found = known_bugs.find_by_rewrites(symptom) or find_decided(alike, study, known_bugs)
    if found is not None and found.bug is not None:
        return "swallowed", found.bug.id
    return "told apart by experiment" if alike else "unlike", ""


def run_pairs(config: WorkerConfig, prefix: str) -> Iterator[dict[str, Any]]:
    """The outcome of each pair."""
    ledger = load_ledger(LEDGER)
    for defect in list_defects(ledger):
        if not defect.name.startswith(prefix):
            continue
        subject = defect.entry.subject
        own = replace(config, named=(subject,) if ":" in subject else ())
        plant: AbstractContextManager[Any] = planted(defect.plant)
        with plant, open_evaluator(own) as worker:
            evaluator = AnswerCache(worker)
            if defect.bug and not defect.entry.expectation.holds_for(evaluator.hello.packages):
                continue
            result, fails = find_failure(defect.entry, evaluator)
            if not fails:
                print(f"{defect.name}: no failure under torch {evaluator.hello.torch}: {result.verdict}", flush=True)
                continue
            told = Counter[str]()
            expected = Expectation("known", subject=result.subject)
            for bug in ledger.bugs:
                if bug.id == defect.bug or not bug.cases:
                    continue
                known_bugs = read_known_bugs(Ledger(ledger.path, (bug,)), evaluator.hello, evaluator.hello.packages)
                if not known_bugs.bugs:
                    continue  # fixed in this torch
                outcome, _ = explain(Entry(defect.entry.case, expect=expected), result, known_bugs, evaluator)
                told[outcome] += 1
                yield {"known": bug.id, "defect": defect.name, "outcome": outcome, "verdict": result.verdict}
                if outcome == "swallowed":
                    print(f"  {bug.id} SWALLOWS {defect.name}", flush=True)
            print(f"{defect.name}: {result.verdict} under {result.subject}: {dict(told)}", flush=True)


def run_own(config: WorkerConfig, prefix: str) -> Iterator[dict[str, Any]]:
    """The outcome of each example: recognised, not recognised, or no failure under this torch."""
    ledger = load_ledger(LEDGER)
    with open_evaluator(config) as worker:
        evaluator = AnswerCache(worker)
        for defect in list_defects(ledger):
            bug = next((bug for bug in ledger.bugs if bug.id == defect.bug), None)
            if bug is None or not defect.name.startswith(prefix):
                continue
            if not defect.entry.expectation.holds_for(evaluator.hello.packages):
                continue
            result, outcome = evaluator.ask(Question(defect.entry.case, (defect.entry.subject,))).only, "no failure"
            if result.verdict.is_finding:
                known_bugs = read_known_bugs(Ledger(ledger.path, (bug,)), evaluator.hello, evaluator.hello.packages)
                # Measured rewrites are known at once; the rest is decided by experiment.
                found, _ = explain(defect.entry, result, known_bugs, evaluator)
                outcome = "recognised" if found == "swallowed" else "not recognised"
            print(f"{bug.id}, {defect.name}: {result.verdict}: {outcome}", flush=True)
            yield {"known": bug.id, "defect": defect.name, "outcome": outcome, "verdict": result.verdict}


def find_failure(entry: Entry, evaluator: Asker) -> tuple[SubjectResult, bool]:
    """The failure as a campaign meets it first: under the cheapest subject that shows it."""
    subjects = dict.fromkeys((*(CHEAPEST[:1] if entry.subject == "inductor" else ()), entry.subject))
    result = next(iter(()), None)
    for subject in subjects:
        result = evaluator.ask(Question(entry.case, (subject,))).only
        if result.verdict.is_finding:
            return result, True
    assert result is not None
    return result, False


def list_defects(ledger: Ledger) -> Iterator[Defect]:
    """The examples of the ledger on this device, and the planted mistakes."""
    for bug in ledger.bugs:
        for path in ledger.examples(bug):
            entry = corpus_entry.load(path)
            if entry.device == "cpu":
                yield Defect(f"known {path.name.partition('.')[0]}", entry, bug.id)
    for known in known_findings("cpu"):
        if not known.name.startswith("known"):
            yield Defect(known.name, known.entry, plant=known.plant)


if __name__ == "__main__":
    sys.exit(main())
