"""Reports to projects other than PyTorch: their scripts run, and their words are those of the project."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile
from corpus.causes import Mechanism, MechanismKind, Project, Stage
from corpus.entry import Entry
from fuzz.attribution.ablation import EAGER, Ablation
from fuzz.attribution.root_cause import RootCause
from fuzz.compilers.table import COMPILERS
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import Value, WrongValue
from generators.program.edits import map_inputs
from tests.command import run_python
from tests.programs import program
from triage.rendering import render
from triage.report import runtimes
from triage.report.build import Evidence, write_report
from triage.report.failing_run import FailingRun
from triage.report.regression import write_case
from triage.report.wording import title

HEADS_BEFORE_POSITIONS = program(
    "B: 2, H: 4, D: 16",
    dict.fromkeys("qkv", "B, H, H, D"),
    "kt = transpose k",
    "scores = matmul q kt",
    "probs = softmax scores",
    "found = matmul probs v",
    "out = transpose found, dim0: 1, dim1: 2",
    returns="[scores, out]",
)
CASE = casefile.loads(HEADS_BEFORE_POSITIONS)
OFF = WrongValue(Value("output", 1), (0, 1, 2, 3), error=2.7, ratio=1e6, limit=32.0, eager_error=4e-7)


def fail(subject: str, error: float = 2.7) -> FailingRun:
    result = SubjectResult(subject, Verdict.WRONG_RESULT, failure=replace(OFF, error=error))
    return FailingRun(CASE, result, title(CASE, result, "cpu"))


def blame(subject: str, stage: Stage = Stage.RUNTIME) -> RootCause:
    return RootCause(COMPILERS[subject].project, stage, "", Mechanism(MechanismKind.WRONG_RESULT))


def run(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    (directory / "script.py").write_text(text)
    return run_python("script.py", cwd=directory)


@pytest.mark.samples
@pytest.mark.parametrize("subject", ["openvino", "openvino_sized", "openvino_backend", "onnxruntime"])
def test_the_script_runs_with_torch_and_the_runtime_alone(subject: str, tmp_path: Path) -> None:
    pytest.importorskip(COMPILERS[subject].packages[0].name)
    done = run(tmp_path, write_case(fail(subject)).write(blame(subject).key))
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("float64 up to 3; off by: eager ")


@pytest.mark.samples
@pytest.mark.parametrize("subject", ["openvino", "openvino_sized", "onnxruntime"])
def test_the_model_and_its_data_show_the_bug_without_torch(subject: str, tmp_path: Path) -> None:
    pytest.importorskip(COMPILERS[subject].packages[0].name)
    bug = fail(subject)
    script = write_case(bug)
    saved = run(tmp_path, runtimes.write_saving(bug, script.program, script.exact))
    assert saved.returncode == 0, saved.stderr
    files = runtimes.list_files(bug)
    assert {*files} == {path.name for path in tmp_path.iterdir() if path.name != "script.py"}
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    done = run(tmp_path, runtimes.write_reproduction(bug))
    assert done.returncode in (0, 1), done.stderr
    assert "float64 up to 3; off by: " in done.stdout
    # A bound below all rounding: the bug shows in each runtime.
    assert run(tmp_path, runtimes.write_reproduction(fail(subject, 1e-12))).returncode == 1


def test_only_a_runtime_at_fault_gets_a_model() -> None:
    bug = fail("openvino")
    assert runtimes.has_model(bug, blame("openvino").key)
    assert not runtimes.has_model(bug, blame("openvino", Stage.CONVERSION).key)
    assert not runtimes.has_model(bug, blame("onnxruntime").key)
    assert not runtimes.has_model(bug, replace(blame("openvino"), who="pytorch").key)
    assert not runtimes.has_model(bug, None)


def test_tensors_that_numpy_lacks_get_no_script() -> None:
    low = map_inputs(CASE, lambda item: replace(item, dtype="bfloat16"))
    assert not write_case(replace(fail("openvino"), case=low)).is_possible
    assert write_case(fail("openvino")).is_possible


@pytest.mark.parametrize(
    ("subject", "label", "repository", "field"),
    [
        ("openvino", "OpenVINO", "openvinotoolkit/openvino", ("OpenVINO Version", "2026.4.1")),
        ("onnxruntime", "ONNX Runtime", "microsoft/onnxruntime", ("Execution Provider", "Default CPU")),
    ],
)
def test_a_report_speaks_of_the_project_and_fills_in_its_form(
    subject: str, label: str, repository: str, field: tuple[str, str]
) -> None:
    bug = fail(subject)
    hello = Hello("2.13.0", "3.11", "cpu", "g++", 1, versions={"openvino": "2026.4.1", "onnxruntime": "1.32.0"})
    ablation = Ablation(hello, {EAGER: SubjectResult(EAGER, Verdict.OK), subject: bug.result}, subject)
    done: subprocess.CompletedProcess[str] = subprocess.CompletedProcess((), 1, "float64 up to 2.3\n", "")
    model = {"script": "reproduce.py", "files": ("model.bin",), "output": "off by 2.9"}
    evidence = Evidence(done, blame(subject), model=model)
    report = write_report(Entry(CASE), ablation, evidence)
    text = render("report.md.j2", report=report)
    assert report["title"].startswith(f"[{label}][CPU] attention")
    assert f"| project | {repository} |" in text
    assert f"| {field[0]} | {field[1]} |" in text
    assert f"{subject} {hello.versions[subject]}" in text
    assert f"needs only torch and {subject}" in text
    assert all(word not in text for word in ("Inductor", "AI_POLICY", "oncall", "test/inductor"))


def test_the_exporter_of_torch_is_a_bug_of_pytorch() -> None:
    bug = fail("onnxruntime")
    cause = replace(blame("onnxruntime", Stage.CONVERSION), who="pytorch")
    script = write_case(bug).write(cause.key)
    assert '# Owner(s): ["module: onnx"]' in script
    assert "test/onnx/exporter/test_api.py" in script
    assert not runtimes.find_form(Project.PYTORCH).repository
