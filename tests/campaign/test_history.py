"""Failures that need earlier cases in the same process."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile
from corpus.entry import Entry, load
from fuzz.ask.evaluator import Judged, open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.campaign import investigation
from fuzz.campaign.history import find_earlier
from fuzz.campaign.session import run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.replay_result import State, replay_entry
from fuzz.run_store import Results
from fuzz.run_summary import RunSummary
from generators.program.case import Case
from tests.campaign.fakes import case, events, judged, options, sampler
from tests.campaign.test_campaign import WRONG, found
from tests.campaign.test_interrupt import start, until
from tests.command import ROOT, run_python
from tests.programs import program
from triage.report.failing_run import FailingRun
from triage.report.regression import FILE, write_case

pytestmark = pytest.mark.worker

AFTER_RELU = {**WRONG, "after": "relu"}
WRONG_RESULT = SubjectResult("passes", Verdict.WRONG_RESULT)

ATTENTION = program(
    "B: 2, H: 1, S: 3, T: 4, D: 8",
    {"q": "B, H, S, D", **dict.fromkeys("kv", "B, H, T, D")},
    "kt = transpose k",
    "scores = matmul q kt",
    "scores2 = mul scores, other: 0.5",
    "probs = softmax scores2",
    "out = matmul probs v",
    contracts="[{q: q, k: k, v: v, output: out, scale: 0.5}]",
)
HALVED = casefile.loads(ATTENTION)
QUARTERED = casefile.loads(ATTENTION.replace("0.5", "0.25"))


def kinds(case: Case) -> list[str]:
    return [op.kind for op in case.ops]


def test_a_failure_that_needs_an_earlier_case_is_saved_with_it(tmp_path: Path) -> None:
    given = options(tmp_path, rules=[AFTER_RELU])
    assert run_campaign(given, sampler("relu", "softmax")).new == 1
    (entry,) = found(given)
    assert kinds(entry.case) == ["softmax"]
    assert [(kinds(earlier.case), earlier.times) for earlier in entry.case.before] == [(["relu"], 1)]


def test_a_failure_that_needs_repetition_is_saved_with_the_number_of_runs(tmp_path: Path) -> None:
    given = options(tmp_path, budget="20x", rules=[{**WRONG, "from_check": 3}])
    assert run_campaign(given, sampler("softmax")).new == 1
    (entry,) = found(given)
    assert kinds(entry.case) == ["softmax"]
    assert [(len(earlier.case.ops), earlier.times) for earlier in entry.case.before] == [(1, 2)]


def test_an_earlier_case_counts_for_a_failure_that_a_public_subject_no_longer_shows(tmp_path: Path) -> None:
    crash = {"match": "sin", "do": "killed", "subjects": ["passes"]}
    given = options(tmp_path, rules=[crash, AFTER_RELU], budget="60x")
    assert run_campaign(given, sampler("relu", "softmax")).new >= 1
    assert any(entry.case.before and kinds(entry.case) == ["softmax"] for entry in found(given))


def test_a_failure_that_never_shows_again_is_counted_by_symptom(tmp_path: Path) -> None:
    given = options(tmp_path, budget="20x", rules=[{**WRONG, "once": str(tmp_path / "used"), "subjects": ["passes"]}])
    ending = run_campaign(given, lambda seed, index, **_: case("softmax", rows=2 + index))
    assert (ending.new, found(given)) == (0, [])
    assert (ending.unconfirmed, RunSummary.load(given.out).unconfirmed) == (1, {("wrong_result", "passes"): 1})


def test_a_killed_campaign_goes_on_with_the_history_of_its_suspicion(tmp_path: Path) -> None:
    process = start(tmp_path, "1h", rules=[AFTER_RELU], seconds=0.02)
    until(lambda: list(events(tmp_path / "run", "SuspicionRaised")))
    process.kill()
    process.communicate()
    with Results(tmp_path / "run") as results:
        for suspicion in results.waiting():
            earlier = [kinds(one.case) for one in results.history(suspicion.id)]
            assert any("relu" in some for some in earlier)
    process = start(tmp_path, "30x", rules=[AFTER_RELU])
    _, error = process.communicate(timeout=300)
    assert process.returncode == 1, error
    (path,) = (tmp_path / "found").glob("*.case.yaml")
    assert [kinds(one.case) for one in load(path).case.before] == [["relu"]]


def test_a_history_is_kept_while_its_suspicion_waits(tmp_path: Path) -> None:
    earlier = [Judged(case("relu"), ("passes",)), Judged(case("exp"), ("passes",))]
    with Results(tmp_path) as results:
        raised = [
            results.record_case(case("softmax"), judged(), unexplained=[(made, WRONG_RESULT)], earlier=some)
            for made, some in ((case("softmax"), earlier), (case("softmax", "sin"), earlier[1:]))
        ]
        (first,), (second,) = raised
        assert results.history(first.id) == earlier
        results.close_suspicion(first.id, "unconfirmed")
        assert (results.history(first.id), results.history(second.id)) == ([], earlier[1:])


def test_an_old_case_with_the_same_rare_shape_is_found_in_few_probes() -> None:
    history = [case("relu", rows=2 if number % 2 else 3) for number in range(200)]
    history[3] = case("exp", rows=7)
    probes = 0

    def fails(pair: Case) -> bool:
        nonlocal probes
        probes += 1
        return any(earlier.case.sizes == pair.sizes for earlier in pair.before)

    found = find_earlier(case("softmax", rows=7), history, fails, lambda: False)
    assert found is not None
    assert [kinds(earlier.case) for earlier in found.before] == [["exp"]]
    assert probes <= 8


def test_a_kernel_with_memory_is_found_replayed_and_reproduced(
    tmp_path: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(investigation, "CONFIRMATIONS", 1)
    monkeypatch.chdir(ROOT)
    subject = "benchmarks.stateful_functions:scale_cached"
    config = WorkerConfig(named=(subject,))
    given = options(tmp_path, "8x", subjects=(subject,), worker_config=config, shrink_seconds=10.0, fail_fast=True)
    ending = run_campaign(given, lambda seed, index, **_: (QUARTERED, HALVED)[index % 2])
    entry = found(given)[0]
    assert ending.new, ending.summary
    assert len(entry.case.before) == 1
    assert len(kinds(entry.case)) <= 5

    with open_evaluator(config) as evaluator:
        assert replay_entry(evaluator, entry).state is State.STILL
        assert replay_entry(evaluator, Entry(replace(entry.case, before=()), found=entry.found)).state is State.GONE
        shown = evaluator.ask(Question(entry.case, (subject,))).only
    replayed = pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-subject", subject, given.corpus)
    replayed.assert_outcomes(xfailed=len(found(given)))

    script = tmp_path / FILE
    script.write_text(write_case(FailingRun(entry.case, shown)).write())
    done = run_python(script, cwd=ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 1, done.stderr
