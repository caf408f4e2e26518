"""`python -m triage.report`, typed as a user types it; findings that it refuses, and what it says of others."""

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import entry
from corpus.causes import Mechanism, MechanismKind, Stage
from corpus.entry import Entry, Expectation, Found
from corpus.ledger import Ledger
from fuzz.ask.worker_config import ROOT
from fuzz.attribution.ablation import DYNAMIC, EAGER, INDUCTOR, PASSES, Ablation
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import subject_of
from fuzz.campaign.session import run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, Raised, Value
from fuzz.protocol.rewrites import SDPA, WrongRewrite
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.case import Case
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG, found
from tests.campaign.test_ledger import ledger_of
from tests.check.in_process import is_nan_with_a_negative_scale
from tests.command import run_command, run_python
from tests.fake_asker import FakeEvaluator
from tests.programs import program
from tests.triage.conftest import SOFTMAX_OVER_QUERIES, FakePython, ablation, ran
from triage.rendering import render
from triage.report import __main__ as report_command
from triage.report.build import describe_refusal, find_cases, write_report
from triage.report.regression import FILE
from triage.report.stages import run_symbolic
from triage.report.wording import describe_symptom, refuse, title

EMPTY = Ledger(Path("ledger.yaml"))
NEGATIVE_SCALE = program(
    "B: 2, H: 4, S: 8, D: 16", dict.fromkeys("qkv", "B, H, S, D"), "out = sdpa q k v, scale: -0.5, is_causal: true"
)


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("triage.report", *arguments)


@pytest.fixture
def file(tmp_path: Path, case: Case) -> Path:
    return entry.save(Entry(case), tmp_path)


@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
@pytest.mark.compiles
@pytest.mark.usefixtures("one_worker")
def test_a_real_bug_becomes_a_report_and_a_script_that_shows_it(tmp_path: Path) -> None:
    file, out = tmp_path / "bug.case.yaml", tmp_path / "out"
    file.write_text(SOFTMAX_OVER_QUERIES)
    done = report(file, "--out", out, "--explain", "1s")
    assert done.returncode == 0, done.stderr
    assert "[Inductor][CPU] attention (matmul, div, softmax, ...): output 0 is off from float64" in done.stdout
    text = (out / "report.md").read_text()
    assert '| `backend="eager"` | ok |' in text
    assert '| `backend="aot_eager"` | ok |' in text
    assert "torch.testing.assert_close(actual.double(), exact, atol=" in text
    assert '| `backend="inductor"` | wrong result |' in text
    assert "_sfdp_pattern_1_inference" in text
    assert "exits with 1 if the bug shows (here: 1)" in text
    assert "a test for `test/inductor/test_fused_attention.py`" in text
    assert "PyTorch version:" in text
    # The report ran it and says that it exits with 1.
    assert run_python(FILE, cwd=out, TORCH_BISECT_BACKEND="eager").returncode == 0


@pytest.mark.compiles
@pytest.mark.usefixtures("one_worker", "no_environment")
@pytest.mark.skipif(not is_nan_with_a_negative_scale(), reason="this torch has no such bug")
def test_eager_that_is_wrong_becomes_a_report_and_a_script_that_compiles_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "bug.case.yaml", tmp_path / "out"
    file.write_text(NEGATIVE_SCALE)
    done = report(file, "--out", out, "--explain", "1s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[CPU] attention (sdpa): eager is not finite where float64 is (aten._scaled")
    text = (out / "report.md").read_text()
    assert "off by: eager nan" in text
    assert "exits with 1 if the bug shows (here: 1)" in text
    script = (out / FILE).read_text()
    assert "torch.compile" not in script
    (out / "right.py").write_text(script.replace("scale=-0.5", "scale=0.5"))
    assert run_python("right.py", cwd=out).returncode == 0


def test_rounding_is_no_issue(tmp_path: Path, file: Path, fake_python: FakePython) -> None:
    done = report(file, "--out", tmp_path / "out", "--python", fake_python("rounding"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{file}: not a bug to report: rounding\n")
    assert not list((tmp_path / "out").iterdir())


def test_words_that_someone_wrote_into_a_report_are_kept(tmp_path: Path, file: Path, fake_python: FakePython) -> None:
    written = tmp_path / "out" / "report.md"
    written.parent.mkdir()
    written.write_text("my words")
    python = fake_python("rounding")
    done = report(file, "--out", written.parent, "--python", python)
    assert (done.returncode, written.read_text()) == (2, "my words")
    assert done.stderr.startswith(f"error: {written} exists and may have your edits")
    assert report(file, "--out", written.parent, "--python", python, "--overwrite").returncode == 0
    assert not written.exists()


def test_findings_of_a_run_are_reported_under_the_subjects_they_were_found_with(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = ("eager", "my.kernels:attention", "my.kernels:other")
    files = {one: entry.save(Entry(case, found=Found("nonfinite", one)), tmp_path / one) for one in subjects}
    monkeypatch.setattr("triage.report.build.find_cases", lambda *_: list(files.items()))
    built = []

    def build(one: Entry, *_: object, subject: str | None, **__: object) -> None:
        built.append((one.subject, subject))
        raise UserError("built")

    monkeypatch.setattr("triage.report.build.build", build)
    assert report_command.report(tmp_path, out=tmp_path / "out", subject=["my.kernels:attention"]) == 2
    assert built == [("eager", None), ("my.kernels:attention", "my.kernels:attention")]


def test_a_case_that_eager_refuses_is_an_error(tmp_path: Path, file: Path, fake_python: FakePython) -> None:
    python = fake_python("ok", rejected="RuntimeError: no such thing")
    done = report(file, "--out", tmp_path / "out", "--python", python)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1] and "RuntimeError: no such thing" in done.stderr


@pytest.mark.parametrize("verdict", [v for v in Verdict if not v.is_finding])
def test_what_is_no_finding_is_refused_with_the_numbers(case: Case, verdict: Verdict) -> None:
    found = ablation(passes=verdict, inductor=verdict)
    why = refuse(found)
    assert why is not None
    head, reason, *lines = describe_refusal(case, found, why).splitlines()
    assert (head, reason) == (f"not a bug to report: {verdict}", f"  {why}")
    assert any("largest error of eager: 2.2e-07" in line for line in lines)
    assert f"  eager, not compiled: {found.stages[EAGER].verdict}" in lines


def test_what_eager_does_too_or_no_user_runs_is_refused() -> None:
    assert refuse(ablation(eager=Verdict.NONDETERMINISTIC)) is not None
    assert refuse(ablation(inductor=Verdict.OK)) is not None


def test_a_compiler_that_is_wrong_in_its_own_way_is_not_excused_by_a_wrong_eager() -> None:
    assert refuse(ablation(eager=Verdict.EAGER_SUSPECT)) is None


BMM = FaultyOperation("aten.bmm", math.nan, 0.31, Value("output", 0), math.inf)


def suspected(error: float = math.inf) -> Ablation:
    numbers = {"eager_error": error, "scale": 1.9, "rows_wrong": 3.0, "rows_total": 80.0, "compiled_error": error}
    result = SubjectResult("eager", Verdict.EAGER_SUSPECT, numbers=numbers, failure=BMM)
    return replace(ablation(), accused=EAGER, stages=ablation().stages | {EAGER: result})


def test_eager_that_is_wrong_is_reported_and_no_compiler_blamed(entry: Entry) -> None:
    found = suspected()
    assert refuse(found) is None
    cause = RootCause("eager", Stage.OPERATION, "aten.bmm", Mechanism(MechanismKind.NOT_FINITE))
    report = write_report(entry, found, replace(ran(), cause=cause))
    assert report["upstream"]
    assert "aten.bmm" in report["title"] and "aten.bmm" in report["cause"]
    assert title(entry.case, suspected(0.5).result, "cpu") != report["title"]
    for words in ("torch.compile", "this subject", "bisector", "TORCH_BISECT_BACKEND", "[Inductor]"):
        assert words not in render("report.md.j2", report=report)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict.is_finding])
def test_a_report_warns_first_of_a_program_that_ends_its_process(entry: Entry, verdict: Verdict) -> None:
    text = render("report.md.j2", report=write_report(entry, ablation(inductor=verdict), ran()))
    assert text.startswith("**Careful: ") == verdict.is_lost


def test_a_title_names_the_operation_that_a_rewrite_calls_in_the_place_of_the_compiler(entry: Entry) -> None:
    called = WrongRewrite("_sfdp_pattern_5_training", faulty=FaultyOperation(SDPA, 1.0, 2.0))
    cause = RootCause("eager", Stage.OPERATION, SDPA, Mechanism(MechanismKind.WRONG), rewrites=(called,))
    report = write_report(entry, ablation(), replace(ran(), cause=cause))
    assert "scaled_dot_product_attention in eager" in report["title"] and "[Inductor]" not in report["title"]
    assert report["title"] != write_report(entry, ablation(), ran())["title"]


def test_of_a_text_that_was_cut_whole_sentences_are_told(case: Case) -> None:
    failure = Raised("RuntimeError", "It seems so. This could be because cond returns …")
    told = describe_symptom(case, SubjectResult("inductor", Verdict.COMPILE_ERROR, failure=failure))
    assert told.endswith("It seems so")


def test_settings_that_only_the_config_shows_are_told_as_config(case: Case) -> None:
    tuned = replace(case, settings=(("deterministic", True),))
    changed = Raised("any", "text")
    words = {
        verdict: title(tuned, SubjectResult("inductor_options", verdict, failure=changed), "cpu")
        for verdict in (Verdict.STATE_CHANGED, Verdict.RUNTIME_ERROR)
    }
    assert "torch._inductor.config.deterministic=True" in words[Verdict.STATE_CHANGED]
    assert "options={'deterministic': True}" in words[Verdict.RUNTIME_ERROR]


def test_every_stage_of_inductor_runs_under_the_settings_of_a_case(entry: Entry) -> None:
    tuned = replace(entry, expect=Expectation("pass", subject="inductor_options"))
    for stage in (INDUCTOR, PASSES, DYNAMIC):
        assert get_spec(subject_of(stage, tuned)).options, stage


def test_a_report_names_settings_where_they_were_on(case: Case) -> None:
    entry = Entry(replace(case, settings=(("freezing", True), ("poison", "nan"))))
    found = ablation()
    found.stages[INDUCTOR] = replace(found.result, subject="inductor_options")
    report = write_report(entry, found, ran())
    assert ["'freezing': True" in words for words, *_ in report["table"]].count(True) == 1


def test_a_report_of_what_only_a_worker_shows_names_the_command(entry: Entry) -> None:
    values = write_report(entry, ablation(), replace(ran(), run=None))
    assert values["replay"] == "python -m fuzz.replay finding.case.yaml --subject inductor"


def test_a_run_gives_one_case_for_each_bug_in_a_directory_of_its_own(tmp_path: Path) -> None:
    given = options(tmp_path, rules=[WRONG])
    run_campaign(given, sampler("softmax"))
    ((name, path),) = find_cases(given.out, EMPTY)
    assert name == found(given)[0].case.id
    assert path.is_file()


def test_a_bug_of_the_ledger_is_asked_for_by_its_id(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "new")
    ((name, path),) = find_cases(Path("softmax"), ledger)
    assert (name, path) == ("", ledger.examples(ledger.bugs[0])[0])


def test_a_run_without_findings_is_refused(tmp_path: Path) -> None:
    given = options(tmp_path, "2x")
    run_campaign(given, sampler())
    with pytest.raises(UserError, match="found nothing to report"):
        list(find_cases(given.out, EMPTY))


@pytest.mark.parametrize(
    ("dynamic", "accused", "is_symbolic"), [(False, INDUCTOR, True), (True, INDUCTOR, False), (False, DYNAMIC, False)]
)
def test_the_row_of_symbolic_sizes_is_about_the_program_of_the_test(
    accused: str, *, dynamic: bool, is_symbolic: bool
) -> None:
    fixed = replace(entry.load(ROOT / "corpus/known/number-added-to-scores.case.yaml").case, dynamic=dynamic)
    wrong = SubjectResult("inductor", Verdict.WRONG_RESULT)
    stages = {INDUCTOR: wrong, DYNAMIC: SubjectResult("inductor_dynamic", Verdict.OK)}
    evaluator = FakeEvaluator(wrong)
    made = Ablation(evaluator.hello, stages, accused)
    run_symbolic(fixed, made, evaluator)
    assert (made.stages[DYNAMIC] is wrong) is is_symbolic
