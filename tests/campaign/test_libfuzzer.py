import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import libfuzzer_inputs as inputs
from fuzz.ask import worker_process
from fuzz.ask.transport import WorkerUnavailable
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerFault
from fuzz.campaign.options import Options
from fuzz.campaign.session import run_campaign
from generators.errors import UserError
from generators.program.type_check import check
from generators.sampling.choices import ByteChoices
from tests.campaign.fakes import case, events, options, sampler, setup
from tests.campaign.test_campaign import WRONG, found
from tests.campaign.test_run import run

pytestmark = pytest.mark.worker

FAKE_HOST = Path(__file__).with_name("fake_host.py")


def fuzzed(tmp_path: Path, budget: str = "20x", **rules: Any) -> Options:
    made = setup(**rules).command
    assert made is not None
    command = (made[0], str(FAKE_HOST), made[2])
    return options(tmp_path, budget, engine="atheris", worker_config=WorkerConfig(timeout=60.0, command=command))


@settings(max_examples=60)
@given(st.binary(max_size=700))
def test_any_bytes_are_a_valid_case(data: bytes) -> None:
    made = inputs.decode(data)
    check(made)
    assert inputs.decode(data) == made
    assert inputs.decode(inputs.encode(made)) == made


@settings(max_examples=30)
@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_mutation_makes_a_valid_case(data: bytes, seed: int) -> None:
    for start in (data, inputs.encode(inputs.decode(data))):
        made = inputs.mutate_input(start, 1 << 16, seed)
        check(inputs.decode(made))
        assert inputs.mutate_input(start, 1 << 16, seed) == made
        assert len(inputs.mutate_input(start, 100, seed)) <= 100


def test_a_case_file_that_was_cut_is_bytes_like_any_other() -> None:
    text = inputs.encode(case("exp", "tanh"))
    assert inputs.decode(text) == case("exp", "tanh")
    for broken in (text[: len(text) // 2], inputs.TEXT, inputs.TEXT + b": 1\n\xff\x00", inputs.TEXT + b": [[[["):
        check(inputs.decode(broken))


def test_without_bytes_every_decision_is_the_likeliest() -> None:
    choices = ByteChoices(b"\xff\xff")
    assert choices.below(10) == 9
    assert (choices.below(10), choices.chance(0.4), choices.chance(0.6)) == (0, False, True)
    assert choices.draw({"rare": 1.0, "usual": 5.0}) == "usual"
    assert choices.subset([1, 2], 0.5) == []


def test_cases_of_libfuzzer_are_judged_shrunk_and_saved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = fuzzed(tmp_path, rules=[WRONG])
    assert run_campaign(options).new == 1
    (entry,) = found(options)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert [event["index"] for event in events(options.out, "CaseJudged")] == list(range(20))
    assert len(events(options.out, "SuspicionClosed")) == 1
    assert "entropic" not in "".join(capfd.readouterr())
    assert "entropic" in (options.out / "workers" / "atheris-0.log").read_text()
    # The next run goes on, in libFuzzer's corpus too.
    assert run_campaign(options).new == 0
    assert [event["index"] for event in events(options.out, "CaseJudged")] == list(range(40))
    assert int((options.out / "atheris-0" / "next").read_text()) >= 42


@pytest.mark.parametrize(("act", "verdict"), [("die", "worker_died"), ("time_out", "timeout")])
def test_the_end_of_libfuzzers_process_is_a_suspicion_and_costs_one_case(
    tmp_path: Path, act: str, verdict: str
) -> None:
    rules = [{"match": "softmax", "subjects": ["passes", "inductor"], "do": act}]
    options = replace(fuzzed(tmp_path, "2x", rules=rules), shrink_seconds=300.0)
    run_campaign(options)
    raised = [event["verdict"] for event in events(options.out, "SuspicionRaised")]
    assert raised[0] == verdict
    assert len(events(options.out, "CaseJudged")) == 2
    ((entry),) = found(options)
    assert entry.found is not None and entry.found.verdict == verdict


def test_cases_that_libfuzzer_kept_are_run_again_and_counted_once(tmp_path: Path) -> None:
    options = fuzzed(tmp_path, "4x", kept=["relu"], rules=[{**WRONG, "match": "relu", "subjects": ["passes"]}])
    run_campaign(options)
    run_campaign(options)
    judged = [event["case"] for event in events(options.out, "CaseJudged")]
    assert len(judged) == 8 and judged.count(case("relu").id) == 1


def test_a_process_that_never_draws_ends_the_run_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01, 0.01))
    options = fuzzed(tmp_path, end=1)
    ending = run_campaign(options)
    assert isinstance(ending.error, WorkerUnavailable) and ending.summary
    assert len(events(options.out, "WorkerDied")) == 3


def test_a_fault_in_the_process_of_libfuzzer_ends_the_run(tmp_path: Path) -> None:
    assert isinstance(run_campaign(fuzzed(tmp_path, end=3)).error, WorkerFault)


def test_subjects_without_compiled_code_are_refused(tmp_path: Path) -> None:
    given = fuzzed(tmp_path, attention=["triton"])
    for subject in ("triton", "aot_eager"):
        with pytest.raises(UserError, match="--subject"):
            run_campaign(
                options(tmp_path, worker_config=given.worker_config, subjects=(subject,), engine="atheris"), sampler()
            )


def test_an_interpreter_without_atheris_is_refused_before_work_starts(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = run("--engine", "atheris", "--budget", "5s", "--python", str(bare), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--engine atheris needs the package atheris: " in done.stderr.splitlines()[-1]  # a slow start has lines too
    assert not list(tmp_path.glob("runs/*"))


def test_libfuzzer_keeps_inputs_that_reach_new_lines_of_inductor(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    (tmp_path / "none").mkdir()

    given = ("--budget", "5x", "--subject", "passes", "--seeds", "none", "--workers", "1", "--out", "run")
    done = run("--engine", "atheris", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "libFuzzer" not in done.stdout + done.stderr
    log = (tmp_path / "run" / "workers" / "atheris-0.log").read_text()
    assert "NEW" in log
    kept = list((tmp_path / "run" / "atheris-0" / "corpus").iterdir())
    assert len(kept) > 1


def test_an_empty_corpus_of_libfuzzer_begins_with_the_seeds(tmp_path: Path) -> None:
    options = replace(fuzzed(tmp_path, "1x"), seeds=(case("exp"), case("tanh")))
    run_campaign(options)
    kept = (options.out / "atheris-0" / "corpus").iterdir()
    assert sorted(inputs.decode(path.read_bytes()).ops[0].kind for path in kept) == ["exp", "tanh"]
