"""Campaigns over attention functions of one's own, and the check for test suites of their authors."""

import itertools
import subprocess
from pathlib import Path

import pytest

from fuzz.ask.worker_config import WorkerConfig
from fuzz.bug_identity import contract_features
from fuzz.campaign import investigation
from fuzz.campaign.session import run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import Results
from fuzz.testing import check_attention
from generators.program.case import Case
from generators.program.emit import source
from generators.sampling.sample import Limits, sample
from tests.campaign.fakes import case, options
from tests.campaign.test_campaign import events
from tests.check.planted_attention import only_float64, right, without_last_key
from tests.command import run_command

PLAIN = frozenset({"grouped", "lengths", "value_dim"})
SUBJECT = "tests.check.planted_attention:without_last_key"


def plain(seed: int, index: int, *, attention_only: bool, limits: Limits, device: str) -> Case:
    """Attention that is asked for nothing but itself."""
    cases = (
        sample(seed, 1000 * index + attempt, attention_only=attention_only, limits=limits, device=device)
        for attempt in itertools.count()
    )
    return next(case for case in cases if contract_features(case) <= PLAIN and "dropout" not in source(case))


@pytest.mark.worker
def test_a_kernel_with_one_fault_gives_one_finding_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(investigation, "CONFIRMATIONS", 1)
    given = options(
        tmp_path, "8x", seed=3, subjects=(SUBJECT,), worker_config=WorkerConfig(named=(SUBJECT,)), shrink_seconds=5.0
    )
    ending = run_campaign(given, plain)
    assert ending.new == 1, ending.summary
    assert f"wrong_result under {SUBJECT}" in ending.summary
    (found,) = (tmp_path / "found").glob("*.case.yaml")
    assert SUBJECT in found.read_text()
    (saved,) = events(given, "FindingSaved")
    assert saved["where"].startswith("out: ")


NARROW = """
def attention(q, k, v, *, scale, mask=None, causal=None):
    if q.requires_grad or k.requires_grad or v.requires_grad:
        raise NotImplementedError("no gradients")
    return attend(q, k, v, scale=scale, mask=mask, causal=causal)

from tests.kernels.reference import math_attention as attend
attention.capabilities = {"dtypes": ("float16",), "max_scores": 1024}
"""


@pytest.mark.worker
def test_most_cases_are_ones_that_the_function_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = "narrow:attention"
    given = options(tmp_path, "60x", subjects=(name,), worker_config=WorkerConfig(named=(name,)))
    run_campaign(given, sample)
    skipped = [event["skipped"] for event in events(given, "CaseJudged") if event["skipped"]]
    assert len(skipped) <= 12


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns share the server of this process, which has imported torch."""
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run_command(command[2], *command[3:]))


@pytest.mark.worker
@pytest.mark.usefixtures("in_process")
def test_a_right_function_leaves_nothing(tmp_path: Path) -> None:
    check_attention(right, cases=3, directory=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.worker
def test_a_wrong_function_fails_with_its_case(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as error:
        check_attention(without_last_key, directory=tmp_path, workers=1, shrink_time="1s")
    (case,) = tmp_path.rglob("*.case.yaml")
    assert str(case) in str(error.value) and "class Module(nn.Module)" in str(error.value)


@pytest.mark.worker
@pytest.mark.usefixtures("in_process")
def test_a_function_that_takes_no_case_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="took 0 of 2 cases"):
        check_attention(only_float64, cases=2, directory=tmp_path, workers=1)


def test_failures_that_are_not_confirmed_in_time_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        out = Path(next(word.removeprefix("--out=") for word in command if word.startswith("--out=")))
        results, one = Results(out), case("exp")
        failure = SubjectResult("inductor", Verdict.TIMEOUT)
        results.record_case(one, position=(1, frozenset()), unexplained=[(one, failure)])
        results.close()
        return subprocess.CompletedProcess(command, 0, "2 suspicions not investigated yet", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(AssertionError, match="2 suspicions"):
        check_attention(right, seconds=1, directory=tmp_path)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="lambda"):
        check_attention(lambda q, k, v, *, scale: q)
