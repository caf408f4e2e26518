"""What reports hold, from verdicts as workers give them."""

import ast
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from corpus import casefile
from corpus.causes import Mechanism, MechanismKind, Stage
from corpus.entry import Entry, Expectation, Found, load
from fuzz.experiments import Outcome, Tried
from fuzz.protocol import FINDINGS, SubjectResult, Verdict
from fuzz.protocol.failures import Failure, FaultyOperation, Raised, StateChange, StateChanged, Value
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.subjects import get_spec
from fuzz.worker_config import ROOT
from generators.program.case import Case, LaterCall
from generators.program.emit import source
from generators.program.memory import is_written
from generators.program.type_check import check as check_case
from generators.sampling.sample import sample
from tests.check.test_sequences import CALLS, of_first_size, products
from tests.triage.conftest import NUMBERS, OFF, ablation, ran
from triage.attribution.ablation import DYNAMIC, EAGER, INDUCTOR, PASSES, Ablation
from triage.attribution.explain import explain
from triage.attribution.root_cause import RootCause, operands_mechanism
from triage.attribution.study import subject_of
from triage.report import repro
from triage.report.build import describe_refusal, write_report
from triage.report.repro import Bug, write_script
from triage.report.wording import name_operands, refuse, title


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
    assert (report.values["at_fault"], report.values["upstream"]) == ("eager", True)
    assert "aten.bmm" in report.title and "aten.bmm" in report.values["cause"]
    assert "0.5" in title(entry.case, suspected(0.5).result, "cpu")
    for words in ("torch.compile", "this subject", "bisector", "TORCH_COMPILE_BACKEND", "[Inductor]"):
        assert words not in report.render()


def test_an_issue_has_all_that_pytorchs_form_asks_for(entry: Entry) -> None:
    report = write_report(entry, ablation(), ran("a log"), environment="PyTorch version: 2.13.0")
    assert (report.values["at_fault"], report.values["exit_code"], report.values["program"]) == (
        "compiled",
        "1",
        source(entry.case).strip(),
    )
    text = report.render()
    parts = ["### In my words", "### Describe", report.values["program"], report.values["output"], "| run with |"]
    places = [text.index(words) for words in (*parts, "### Reproduce", "### Versions", report.values["environment"])]
    assert places == sorted(places)
    assert len(text.splitlines()) < 120
    assert report.values["log"] == "" and "a log" not in text


def test_cause_and_conditions_follow_the_table(entry: Entry) -> None:
    shown = Tried("unfused", "", Outcome.PASSES)
    mechanism = Mechanism(MechanismKind.CONSTANTS_IGNORED)
    cause = RootCause("inductor", Stage.JOINT_PASSES, "_sfdp_pattern_1", mechanism, (shown,))
    wrong = ablation().result

    def judge(other: Case) -> SubjectResult:
        mended = any(op.kind == "softmax" and op.attr("dim") is None for op in other.ops)
        return replace(wrong, verdict=Verdict.OK) if mended else wrong

    conditions = tuple(explain(entry.case, wrong, judge, rewrite=True))
    report = write_report(entry, ablation(), replace(ran(), cause=cause, conditions=conditions))
    assert "_sfdp_pattern_1" in report.values["cause"]
    assert len(report.values["evidence"]) == len(cause.evidence)
    assert report.values["conditions"] == conditions != ()
    text = report.render()
    places = [text.index(part) for part in ("| run with |", *report.values["evidence"], *report.values["conditions"])]
    assert places == sorted(places)
    assert len(text.splitlines()) < 120


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


def test_an_error_is_shown_by_its_log(entry: Entry) -> None:
    report = write_report(entry, ablation(inductor=Verdict.COMPILE_ERROR), ran("a log\n"))
    assert (report.values["log"], report.values["output"]) == ("a log", "")
    assert "```\na log\n```\n" in report.render()


@pytest.mark.parametrize(
    ("verdict", "failure", "words"),
    [
        (Verdict.WRONG_RESULT, OFF, ["0.97", "2.2e-07"]),
        (Verdict.WRONG_GRADIENT, replace(OFF, value=Value("input", 0, is_gradient=True)), ["gradient of", "0.97"]),
        (Verdict.NONFINITE, None, ["NaN"]),
        (Verdict.COMPILE_ERROR, Raised("IndexError", "no"), ["compiling", "IndexError: no"]),
    ],
)
def test_the_title_is_the_symptom(case: Case, verdict: Verdict, failure: Failure | None, words: list[str]) -> None:
    found = title(case, SubjectResult("inductor", verdict, numbers=NUMBERS, failure=failure), "cpu")
    assert found.startswith("[Inductor][CPU] attention with softmax over dim -2: ")
    assert all(word in found for word in words)


def test_a_title_names_few_operations_and_the_pattern_that_matched() -> None:
    entry = load(ROOT / "corpus" / "known" / "integer-mask.case.yaml")
    result = SubjectResult(
        "inductor", Verdict.WRONG_RESULT, numbers=NUMBERS, failure=OFF, applied_rewrites=("_sfdp_pattern_15",)
    )
    name = title(entry.case, result, "cpu")
    assert "matmul, div, eq, ... (_sfdp_pattern_15)" in name and "masked_fill" not in name


def test_a_report_says_what_other_versions_gave(case: Case) -> None:
    found = Found("wrong_result", "inductor", torch="2.13.0+cpu")
    entry = Entry(case, found=found, seen={"2.9.1": "compile_error IndexError", "2.12.1": "ok"})
    seen = write_report(entry, ablation(), ran()).values["seen"]
    assert seen == "2.9.1: compile error (IndexError); 2.12.1: passes; 2.13.0: wrong result"
    assert write_report(replace(entry, seen={}), ablation(), ran()).values["seen"] == ""


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("verdict", sorted(FINDINGS - {Verdict.OUT_OF_MEMORY}))
def test_repro_is_one_short_file_that_imports_torch_alone(case: Case, verdict: Verdict, mode: str) -> None:
    text = script(replace(case, mode=mode), verdict, 'a "title" with \\ in it')
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize("verdict", [Verdict.WRONG_RESULT, Verdict.EAGER_SUSPECT])
def test_repro_has_one_thread_and_says_where_it_cannot_run(tmp_path: Path, case: Case, verdict: Verdict) -> None:
    text = script(case, verdict)
    assert "\ntorch.set_num_threads(1)" in text
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is broken')")
    (tmp_path / "repro.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (repro.CANT_RUN, "", 1)
    assert "OSError('libtorch.so is broken')" in done.stderr


@pytest.mark.samples
def test_repro_has_the_text_that_ran() -> None:
    for index in range(30):
        drawn = sample(7, index)
        text = script(drawn)
        assert source(drawn).strip() in text
        assert imported(text) - set(sys.stdlib_module_names) == {"torch"}


WRITES = """
case_format: 1
dims: {B: 2}
inputs:
  x: {shape: [B], dtype: float32, values: {seed: 0}}
  z: {shape: [B], dtype: float32, values: {seed: 2}}
  cache: {shape: [B], dtype: float32, values: {seed: 1}, parameter: true, buffer: true}
ops:
  - {name: written, op: add_, args: [cache, z]}
  - {name: out, op: mul, args: [written, x]}
returns: [out]
"""


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        (products(calls=CALLS), "call 3: output 0"),
        (products("inference", (*CALLS[:2], LaterCall(under="training"))), "call 3: output 0"),
        (casefile.loads(WRITES), "cache afterwards"),
        (casefile.loads(WRITES.replace("cache, z", "x, z").replace("written, x", "written, z")), "x afterwards"),
        (replace(casefile.loads(WRITES), calls=(LaterCall(),)), "call 2: output 0"),
    ],
)
def test_repro_shows_which_value_of_which_call_is_off(
    case: Case, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_case(case)
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(case), names)
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    with torch.enable_grad():  # A script sets that for its whole process.
        assert not names["shows_bug"]()
    capsys.readouterr()
    compile_module = without_writes if is_written(case) else of_first_size
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_module(module, False))
    with torch.enable_grad():
        assert names["shows_bug"]()
    off = {line.partition(": values")[0] for line in capsys.readouterr().out.splitlines() if line.endswith("; wrong")}
    assert wrong in off


def without_writes(module: nn.Module, _dynamic: bool) -> Any:
    def call(*inputs: Tensor) -> Tensor:
        state = [(value, value.clone()) for value in (*inputs, *module.buffers())]
        out: Tensor = module(*inputs).clone()
        for value, before in state:
            value.copy_(before)
        return out

    return call


@pytest.mark.compiles
@pytest.mark.parametrize("subject", ["export", "aot_inductor"])
def test_repro_exports_what_was_exported(subject: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(case, subject=subject), names)
    package = Mock(side_effect=lambda one: one)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", package)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda one: one.module())
    with torch.enable_grad():
        assert not names["shows_bug"]()
    assert package.called == (subject == "aot_inductor")
    run_program = ExportedProgram.module
    monkeypatch.setattr(ExportedProgram, "module", lambda one: lambda *inputs: -run_program(one)(*inputs))
    with torch.enable_grad():
        assert names["shows_bug"]()


@pytest.mark.parametrize("kind", [None, "nan", "large"])
def test_repro_compiles_under_options_and_fills_what_compiled_code_allocates(
    kind: str | None, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards: Any = torch._C._dynamo.guards
    given = []
    monkeypatch.setattr(guards, "_empty_strided_cpu", lambda *form: torch.zeros(form[0], dtype=form[2]))

    def compile_module(module: nn.Module, **options: Any) -> Any:
        given.append(options["options"])
        return lambda *inputs: module(*inputs) + guards._empty_strided_cpu((4, 1), (1, 1), torch.float32)[0]

    monkeypatch.setattr(torch, "compile", compile_module)
    poison = (("poison", kind),) if kind else ()
    names: dict[str, Any] = {"__name__": "repro"}
    exec(script(replace(case, settings=(("cpp.threads", 2), *poison)), subject="inductor_options"), names)
    with torch.enable_grad():
        assert names["shows_bug"]() == (kind is not None)
    assert given == [{"cpp.threads": 2}]


def test_a_report_names_settings_where_they_were_on_and_no_backend_where_none_can_be_chosen(case: Case) -> None:
    entry = Entry(replace(case, settings=(("freezing", True), ("poison", "nan"))))
    found = ablation()
    found.stages[INDUCTOR] = replace(found.result, subject="inductor_options")
    report = write_report(entry, found, ran())
    assert [name for name, _ in report.values["settings"]] == ["`freezing=True`", "`poison=nan`"]
    assert ["'freezing': True" in words for words, *_ in report.values["table"]].count(True) == 1
    assert not report.values["can_bisect"]
    cause = RootCause("inductor", Stage.GRAPH_PASSES, "a_pass", Mechanism(MechanismKind.OTHER_VALUES))
    assert write_report(entry, found, replace(ran(), cause=cause)).values["can_bisect"]
    unknown = replace(cause, part="")
    assert not write_report(entry, found, replace(ran(), cause=unknown)).values["can_bisect"]


def test_a_plain_script_prints_the_state_that_compiling_changes(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "torch._inductor.config.deterministic"
    failure = StateChanged((StateChange(option, "True", "its default"),))
    result = SubjectResult("inductor_options", Verdict.STATE_CHANGED, failure=failure)
    names: dict[str, Any] = {"__name__": "repro"}
    tuned = replace(case, settings=(("deterministic", True),))
    # `monkeypatch` would delete the option at the end, as it is not in the `__dict__` of its module.
    with torch._inductor.config.patch(deterministic=False), torch.enable_grad():
        exec(write_script(Bug(case=tuned, result=result, title="title")), names)
        monkeypatch.setattr(torch, "compile", lambda module, **_: module)
        assert not names["shows_bug"]()

        def compile_module(module: nn.Module, **_: Any) -> nn.Module:
            torch._inductor.config.deterministic = False
            return module

        monkeypatch.setattr(torch, "compile", compile_module)
        assert names["shows_bug"]()
    assert capsys.readouterr().out.splitlines()[-1] == f"{option}: True before compiling, False afterwards"
    odd = StateChanged((StateChange("torch's number of threads", "1", "2"),))
    assert not write_script(Bug(case=tuned, result=replace(result, failure=odd), title="title"))


def test_a_report_of_what_only_a_worker_shows_names_the_command(entry: Entry) -> None:
    values = write_report(entry, ablation(), replace(ran(), run=None)).values
    assert values["replay"] == "python -m fuzz.replay finding.case.yaml --subject inductor"


def test_the_summary_has_the_largest_error_as_the_script_prints_it(entry: Entry) -> None:
    report = write_report(entry, ablation(), ran())
    assert "output 0 is off by up to 0.97 from float64, eager by 2.2e-07." in report.values["summary"]
    assert "0.9 " not in report.values["summary"]


def test_evidence_names_the_inputs_of_the_program_that_a_pattern_reads() -> None:
    entry = load(ROOT / "corpus" / "known" / "row-without-a-key.case.yaml")
    wrong = WrongRewrite(
        "_sfdp_pattern_18", {"causal_mask": ("all 1",), "query": ("all 0",)}, {"causal_mask": ("all 0",)}
    )
    cause = name_operands(
        entry.case, RootCause("inductor", Stage.JOINT_PASSES, "p", operands_mechanism(wrong), (), (wrong,))
    )
    assert str(cause.mechanism) == "wrong for some values of mask and x"
    assert cause.measured is not None and set(cause.measured.wrong) == {"mask"}


def script(case: Case, verdict: Verdict = Verdict.WRONG_RESULT, title: str = "title", subject: str = "inductor") -> str:
    return write_script(Bug(case=case, result=SubjectResult(subject, verdict), title=title))


def imported(text: str) -> set[str]:
    names = [
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ]
    return {name.partition(".")[0] for name in names}
