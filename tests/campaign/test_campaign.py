from dataclasses import replace
from pathlib import Path

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry, Expectation, Found
from fuzz.ask import worker_process
from fuzz.ask.transport import WorkerUnavailable
from fuzz.campaign import options as campaign_options
from fuzz.campaign.options import Options, StopReason
from fuzz.campaign.session import run_campaign
from fuzz.run_store import FindingRow, Results
from generators.errors import UserError
from generators.program.case import Case
from generators.program.emit import source
from tests.campaign.fakes import case, events, options, sampler, setup

pytestmark = pytest.mark.worker

WRONG = {
    "match": "softmax",
    "verdict": "wrong_result",
    "applied_rewrites": ["_sfdp_pattern_5_inference"],
    "dynamo_same": False,
    "subjects": ["passes", "inductor", "inductor_dynamic"],
    "unless": ["pattern_matcher_off"],
}


def found(given: Options) -> list[Entry]:
    return [corpus_entry.load(path) for path in sorted(given.corpus.glob("*.case.yaml"))]


def rows(given: Options) -> tuple[list[FindingRow], dict[str, int]]:
    with Results(given.out) as results:
        return results.findings(), results.outcomes()


def test_a_campaign_says_which_coverage_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"lowerings": "torch._inductor.graph.GraphLowering.call_function"}
    given = options(tmp_path, budget="1x", worker_config=setup(missing_hooks=missing))
    run_campaign(given, sampler("softmax"))
    assert [event["missing_hooks"] for event in events(given.out, "CampaignStarted")] == [missing]
    assert missing["lowerings"] in capsys.readouterr().err


def test_one_bug_met_often_is_one_minimal_finding_with_a_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(tmp_path, rules=[WRONG])
    ending = run_campaign(given, sampler("softmax"))
    assert (ending.new, ending.interrupted) == (1, False)
    (entry,) = found(given)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert entry.found is not None
    assert (entry.found.verdict, entry.found.subject, entry.found.torch) == ("wrong_result", "inductor", "2.13.0")
    ((finding,), outcomes) = rows(given)
    assert finding.count == 20
    assert "waiting" not in outcomes
    # Shrinking was paid once.
    assert len(events(given.out, "SuspicionClosed")) == 1
    told = capsys.readouterr().out
    assert "wrong_result under inductor" in told
    assert source(entry.case).splitlines()[-1] in told
    assert f"python -m fuzz.replay {given.corpus}" in told
    assert "met 20x" in ending.summary


@pytest.mark.parametrize(
    ("action", "verdict"),
    [("die", "worker_died"), ("time_out", "timeout"), ("eat", "out_of_memory"), ("", "device_error")],
)
def test_the_end_of_a_worker_is_one_finding_and_the_campaign_goes_on(tmp_path: Path, action: str, verdict: str) -> None:
    misaligned = {"kind": "device_error", "fault": "misaligned address"}
    broken = {"verdict": verdict, "failure": misaligned, "synchronous": {"failure": misaligned | {"kernel": "rows"}}}
    rules = [{"match": "softmax", "subjects": ["inductor", "spent"], **({"do": action} if action else broken)}]
    given = options(
        tmp_path,
        budget="6x",
        subjects=("inductor",),
        worker_config=setup(rules=rules, memory_mib=200),
        shrink_seconds=3.0,
    )
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == 1
    ways = [event["how"] for event in events(given.out, "WorkerDied")]
    timeouts = f" ({ways.count('timeout')} timeouts)" if action == "time_out" else ""
    assert f"{len(ways)} workers were lost{timeouts}: " in ending.summary
    (entry,) = found(given)
    assert entry.found is not None
    assert entry.found.verdict == verdict
    assert "softmax" in {op.kind for op in entry.case.ops}
    assert len(events(given.out, "CaseJudged")) == 6


def test_a_function_that_is_called_anew_for_each_case_is_lost_once_for_each(tmp_path: Path) -> None:
    rules = [{"match": "", "subjects": ["tests.fake:one"], "do": "die"}]
    fakes = setup(rules=rules, attention=["tests.fake:one"], subjects=["tests.fake:one"])
    given = options(tmp_path, budget="1x", subjects=("tests.fake:one",), worker_config=fakes, shrink_seconds=1.0)
    run_campaign(given, sampler("softmax"))
    names = [event["event"] for event in events(given.out)]
    assert names[: names.index("SuspicionRaised")].count("WorkerDied") == 1


def test_a_lost_process_does_not_take_an_earlier_verdict_with_it(tmp_path: Path) -> None:
    dies = {"match": "softmax", "subjects": ["tests.fake:one"], "do": "die"}
    given = options(
        tmp_path,
        budget="4x",
        subjects=("passes", "inductor", "tests.fake:one"),
        worker_config=setup(rules=[dies, WRONG]),
        shrink_seconds=1.0,
    )
    run_campaign(given, sampler("softmax"))
    judged = [event["verdicts"] for event in events(given.out, "CaseJudged")]
    assert {"passes": "wrong_result", "tests.fake:one": "worker_died"}.items() <= next(
        verdicts for verdicts in judged if verdicts.get("tests.fake:one") == "worker_died"
    ).items()


@pytest.mark.parametrize(("seconds", "is_shrinking_cut"), [(0.0, True), (60.0, False)])
def test_a_finding_says_whether_shrinking_was_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float, is_shrinking_cut: bool
) -> None:
    given = options(tmp_path, "6x", rules=[WRONG], shrink_seconds=seconds)
    ending = run_campaign(given, sampler("softmax"))
    entry, *others = found(given)
    assert {one.is_shrinking_cut for one in (entry, *others)} == {is_shrinking_cut}
    goes_on = f"-m fuzz.shrink {given.corpus / entry.file_name}"
    assert (goes_on in capsys.readouterr().out) is (goes_on in ending.summary) is is_shrinking_cut


def test_without_a_public_subject_findings_stay_in_the_run_directory(tmp_path: Path) -> None:
    given = options(tmp_path, rules=[WRONG], subjects=("passes",))
    assert run_campaign(given, sampler("softmax")).new == 0
    assert found(given) == []
    assert len(list((given.out / "internal").glob("*.case.yaml"))) == 1
    assert [row.kind for row in rows(given)[0]] == ["internal"]


def test_a_minimum_that_fresh_workers_dont_repeat_is_walked_back(tmp_path: Path) -> None:
    fragile = {**WRONG, "match": "softmax", "from_check": 2}
    robust = {**WRONG, "match": r"(?s)sin.*softmax|softmax.*sin"}
    given = options(tmp_path, budget="12x", rules=[robust, fragile])
    assert run_campaign(given, lambda seed, index, **_: case("exp", "sin", "softmax", "tanh")).new == 1
    (entry,) = found(given)
    kinds = [op.kind for op in entry.case.ops]
    assert {"sin", "softmax"} <= set(kinds)
    assert len(kinds) < 4


@pytest.mark.parametrize(("versions", "new"), [(">=2.11,<2.15", 0), ("<2.13", 1)])
def test_known_findings_of_this_torch_are_counted_and_dont_turn_a_run_red(
    tmp_path: Path, versions: str, new: int
) -> None:
    given = options(tmp_path, rules=[WRONG])
    known = Entry(
        case=case("softmax", rows=2),
        expect=Expectation("known", "https://github.com/pytorch/pytorch/issues/1", versions),
        found=Found("wrong_result", "inductor", ("_sfdp_pattern_5_inference",)),
    )
    corpus_entry.save(known, given.ignore_dirs[0])
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == len(found(given)) == new
    assert ("  20x wrong_result" in ending.summary) is not bool(new)


def test_findings_of_an_earlier_run_in_the_same_corpus_are_no_news(tmp_path: Path) -> None:
    assert run_campaign(options(tmp_path, rules=[WRONG]), sampler("softmax")).new == 1
    again = options(tmp_path, seed=2, rules=[WRONG], out=tmp_path / "second")
    assert run_campaign(again, sampler("softmax")).new == 0


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    given = options(tmp_path, budget="10x", rules=[WRONG])
    assert run_campaign(given, sampler("softmax")).new == 1
    assert run_campaign(given, sampler("softmax")).new == 0
    assert [event["index"] for event in events(given.out, "CaseJudged")] == list(range(20))
    assert len(found(given)) == 1


def test_an_interrupt_at_the_very_end_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzz.campaign.session.summarize", interrupt)
    given = options(tmp_path, rules=[WRONG], budget="2x")
    with pytest.raises(KeyboardInterrupt):
        run_campaign(given, sampler("softmax"))
    ((finding,), _) = rows(given)
    assert finding.kind == "new"


def test_a_run_goes_on_with_its_own_seed_alone(tmp_path: Path) -> None:
    run_campaign(options(tmp_path, budget="2x", seed=1), sampler())
    run_campaign(options(tmp_path, budget="2x", seed=-1), sampler())
    with pytest.raises(UserError, match="holds a run with seed 1"):
        run_campaign(options(tmp_path, budget="2x", seed=2), sampler())


def test_a_finding_whose_file_was_not_written_is_written_at_the_next_start(tmp_path: Path) -> None:
    given = options(tmp_path, rules=[WRONG])
    run_campaign(given, sampler("softmax"))
    (path,) = given.corpus.glob("*.case.yaml")
    text = path.read_text()
    path.unlink()
    assert run_campaign(given, sampler("softmax")).new == 0
    assert path.read_text() == text


def test_fail_fast_stops_at_the_first_finding(tmp_path: Path) -> None:
    given = options(tmp_path, budget="1000x", rules=[WRONG], fail_fast=True)
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == 1
    (ended,) = events(given.out, "CampaignEnded")
    assert ended["reason"] == StopReason.FAIL_FAST
    assert len(events(given.out, "CaseJudged")) < 1000


def test_rejected_cases_are_counted_by_reason(tmp_path: Path) -> None:
    rules = [{"match": "softmax", "subjects": ["eager"], "rejected": "RuntimeError: no such thing"}]
    ending = run_campaign(options(tmp_path, budget="10x", rules=rules), sampler("softmax"))
    assert "eager refused 50.0%" in ending.summary
    assert "refused 5x: RuntimeError: no such thing" in ending.summary


def test_workers_are_replaced_before_their_memory_grows_past_the_limit_and_not_for_being_large(tmp_path: Path) -> None:
    growing = options(tmp_path / "growing", budget="10x", worker_config=setup(rules=[], growth=900.0))
    large = setup(memory_mib=1000, rules=[], rss=900.0, growth=1.0)
    for given in (growing, options(tmp_path / "large", budget="10x", worker_config=large)):
        run_campaign(given, sampler())
        assert (len(events(given.out, "WorkerStarted")) > 2) is (given is growing)


def test_one_campaign_at_a_time_uses_a_directory(tmp_path: Path) -> None:
    given = options(tmp_path, budget="1x")
    failures = []

    def sample(seed: int, index: int, **_: object) -> Case:
        try:
            run_campaign(given, sampler())
        except UserError as error:
            failures.append(str(error))
        return case("exp")

    run_campaign(given, sample)
    assert failures == [f"--out {given.out}: another campaign is running there"]


def test_workers_that_start_no_more_end_the_campaign_after_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01, 0.01))
    rules = [{"match": "relu", "do": "die"}, WRONG]
    given = options(
        tmp_path, worker_config=setup(rules=rules, starts=str(tmp_path / "starts"), bad_starts=list(range(6, 99)))
    )
    ending = run_campaign(given, sampler("softmax", "relu", every=8))
    assert isinstance(ending.error, WorkerUnavailable) and ending.summary
    (ended,) = events(given.out, "CampaignEnded")
    assert ended["reason"] == StopReason.NO_WORKER


def test_a_budget_of_time_is_kept_and_what_it_cut_off_comes_first_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_options, "GRACE_SECONDS", 0.2)
    hangs = options(
        tmp_path, budget="1s", worker_config=setup(rules=[{"match": "softmax", "do": "hang"}], timeout=60.0)
    )
    assert run_campaign(hangs, sampler("softmax")).error is None
    assert [event["reason"] for event in events(hangs.out, "CampaignEnded")] == [StopReason.BUDGET]
    assert not events(hangs.out, "CaseJudged")
    run_campaign(options(tmp_path, budget="2x"), sampler("softmax"))
    assert [event["index"] for event in events(hangs.out, "CaseJudged")] == [0, 1]


def test_a_compiler_is_asked_for_where_one_is_needed(tmp_path: Path) -> None:
    given = options(tmp_path, worker_config=setup(cxx=None))
    with pytest.raises(UserError, match=r"no C\+\+ compiler for inductor: .*--subject passes"):
        run_campaign(given, sampler())
    run_campaign(options(tmp_path, budget="3x", worker_config=setup(cxx=None), subjects=("passes",)), sampler())


def test_a_fault_of_ours_is_raised_where_it_can_be_seen(tmp_path: Path) -> None:
    def sample(seed: int, index: int, **_: object) -> Case:
        if index == 5:
            raise ZeroDivisionError
        return case("exp")

    ending = run_campaign(options(tmp_path), sample)
    assert isinstance(ending.error, ZeroDivisionError)
    assert ending.summary


def test_a_fault_of_ours_is_told_and_accuses_nobody(tmp_path: Path) -> None:
    rules = [{"match": "softmax", "subjects": ["passes"], "do": "fail"}]
    given = options(tmp_path, budget="8x", rules=rules)
    ending = run_campaign(given, sampler("softmax"))
    assert (ending.new, ending.faults) == (0, 4)
    assert not found(given)
    (told,) = {event["text"].splitlines()[-1] for event in events(given.out, "WorkerFailed")}
    assert told == "IndexError: amax over nothing"
    files = sorted((given.out / "faults").glob("*.case.yaml"))
    assert files and f"{told}: {files[0].parent}" in " ".join(ending.summary.split())
    entry = corpus_entry.load(files[0])
    assert "softmax" in source(entry.case)
    assert told in Path(str(files[0]).replace(".case.yaml", ".log")).read_text()


def test_a_run_is_not_continued_under_another_torch(tmp_path: Path) -> None:
    given = options(tmp_path, "2x", worker_config=setup(torch="2.13.0+cpu"))
    run_campaign(given, sampler())
    with pytest.raises(UserError):
        run_campaign(replace(given, worker_config=setup(torch="2.14.0+cpu")), sampler())
    run_campaign(replace(given, worker_config=setup(torch="2.13.0")), sampler())
    assert len(events(given.out, "CaseJudged")) == 4
