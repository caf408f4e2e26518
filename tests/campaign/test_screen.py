"""The text of a finding and of the closing summary, for a person who reads it the first time."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign.screen import describe_finding, summarize
from fuzz.campaign.session import run_campaign
from fuzz.cli import wrap
from fuzz.durations import format_count
from fuzz.events import FindingSaved
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Failure, NotFinite, NotTaken, Refusal, Value
from fuzz.replay_result import list_numbers
from generators.errors import UserError
from generators.records import encode
from tests.campaign.fakes import options, sampler, setup
from tests.campaign.test_campaign import WRONG

NAMED = "my_package.kernels:attention"
NOT_FINITE = NotFinite(Value.of_result("out"), 3, (0, 0))
NUMBERS = {"compiled_error": 2.5e-07, "peer_error": 2e-07, "scale": 1.5, "rows_wrong": 0.0}


def saved(
    subject: str = "inductor",
    failure: Failure = NOT_FINITE,
    verdict: Verdict = Verdict.WRONG_RESULT,
    ops: int = 1,
    worker: str = sys.executable,
) -> str:
    return describe_finding(
        FindingSaved(
            case="abc",
            verdict=verdict,
            result=SubjectResult(subject, verdict, numbers=NUMBERS, dynamo_same=True, failure=failure),
            ops=ops,
            path="found/x.case.yaml",
            internal=False,
            source="pass",
        ),
        worker,
    )


def test_the_commands_name_the_interpreter_of_the_workers_if_it_is_another() -> None:
    assert "--python" not in saved()
    assert saved(worker="/opt/nightly/bin/python").count("--python /opt/nightly/bin/python") == 2


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_text_breaks_at_words_to_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = "/a" * 30
    words = ["an"] * 50
    for text in (wrap(" ".join(words)), wrap("  " + " ".join(words)), wrap(" ".join([*words, path, *words]))):
        assert all(len(line) <= min(columns, 80) or line.strip() == path for line in text)
        assert set(" ".join(text).split()) <= {"an", path}
    about, *_ = saved().partition("pass")
    assert all(len(line) <= columns for line in about.splitlines())


def test_one_of_a_thing_is_told_without_an_s(tmp_path: Path) -> None:
    assert [format_count(number, "suspicion") for number in (0, 1, 2)] == [
        "0 suspicions",
        "1 suspicion",
        "2 suspicions",
    ]
    assert "under inductor, 1 operation\n" in saved()
    ending = run_campaign(options(tmp_path, rules=[WRONG]), sampler("softmax"))
    assert ending.summary.startswith("1 new finding in")
    assert ", 1 operation, met 20x" in ending.summary


def test_quiet_prints_findings_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_campaign(options(tmp_path, "4x", quiet=True), sampler())
    assert capsys.readouterr() == ("", "")
    run_campaign(options(tmp_path, "4x", quiet=True, rules=[WRONG]), sampler("softmax"))
    printed = capsys.readouterr()
    assert printed.out.startswith("finding: ")
    assert printed.err == ""


@pytest.mark.parametrize("waiting", [1, 3])
def test_a_campaign_that_left_work_names_the_directory_to_go_on_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(
        "fuzz.campaign.session.summarize",
        lambda run, *others, **given: summarize(replace(run, outcomes={"waiting": waiting}), *others, **given),
    )
    given = options(tmp_path, budget="2x", resume=("--budget", "2x", "--out", "my run"))
    told = run_campaign(given, sampler("softmax")).summary
    assert f"{format_count(waiting, 'suspicion')} not investigated" in told
    assert "-m fuzz.run --budget 2x --out 'my run'" in told


REFUSED = {
    "match": "",
    "verdict": "skipped",
    "subjects": [NAMED],
    "failure": encode(NotTaken(Refusal.UNSUPPORTED, "no")),
}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_subject_that_takes_no_case_is_no_success(tmp_path: Path, is_named: bool) -> None:
    worker = setup(rules=[REFUSED], subjects=[NAMED], attention=[NAMED])
    given = options(tmp_path, "4x", subjects=(NAMED,), named=(NAMED,) * is_named, worker_config=worker)
    ending = run_campaign(given, sampler())
    assert isinstance(ending.error, UserError) is is_named
    assert "0 attention modules compared" in ending.summary


def test_a_subject_that_takes_no_case_hides_no_finding_of_another(tmp_path: Path) -> None:
    worker = setup(rules=[REFUSED, WRONG], subjects=["passes", "inductor", NAMED], attention=[NAMED])
    given = options(tmp_path, subjects=("passes", "inductor", NAMED), named=(NAMED,), worker_config=worker)
    ending = run_campaign(given, sampler("softmax"))
    assert (ending.new, ending.error) == (1, None)


def test_the_end_speaks_of_this_run(tmp_path: Path) -> None:
    assert "1 new failure" in run_campaign(options(tmp_path, rules=[WRONG]), sampler("softmax")).summary
    ending = run_campaign(options(tmp_path), sampler("softmax"))
    assert ending.new == 0 and "new failure" not in ending.summary and "found/" in ending.summary


@pytest.mark.parametrize("path", ["", "/home/me/my code"])
def test_a_command_with_a_function_of_ones_own_has_the_path_it_was_found_by(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    for command in ("fuzz.replay", "triage.report"):
        (line,) = (line for line in saved(NAMED).splitlines() if f"-m {command} " in line)
        words = shlex.split(line)  # nothing else is on that line, so that it can be copied
        assert words[:1] == [f"PYTHONPATH={path}"] if path else ["-m", command] == words[1:3]
        assert words[words.index("--subject") + 1] == NAMED
    assert "PYTHONPATH" not in saved()


def test_the_numbers_of_a_call_that_is_not_finite_are_told_as_such() -> None:
    text = " ".join(saved("triton", NOT_FINITE, Verdict.NONFINITE).split())
    assert "of a right kernel where it is finite: 2e-07" in text


def test_nothing_is_called_compiled_where_eager_is_wrong() -> None:
    numbers = {"compiled_error": 0.1, "eager_error": 0.1}
    for subject, verdict, words in (
        ("eager", Verdict.EAGER_SUSPECT, ["largest error of eager"]),
        ("triton", Verdict.EAGER_SUSPECT, ["largest error of eager", "largest error of the subject"]),
        ("inductor", Verdict.WRONG_RESULT, ["largest error of eager", "largest error of compiled"]),
    ):
        listed = list_numbers(SubjectResult(subject, verdict, numbers=numbers))
        assert [what for what, _ in listed] == words
