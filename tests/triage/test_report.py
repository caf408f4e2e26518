"""`python -m triage.report`, typed as a user types it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corpus import entry
from corpus.entry import Entry, Found
from generators.errors import UserError
from generators.program.case import Case
from tests.check.sources import is_nan_with_a_negative_scale
from tests.command import run_command
from tests.triage.conftest import SOFTMAX_OVER_QUERIES, FakePython
from triage.report import __main__ as report_command

NEGATIVE_SCALE = """
case_format: 1
dims: {B: 2, H: 4, S: 8, D: 16}
inputs:
  q: {shape: [B, H, S, D], dtype: float32, values: {seed: 0}}
  k: {shape: [B, H, S, D], dtype: float32, values: {seed: 1}}
  v: {shape: [B, H, S, D], dtype: float32, values: {seed: 2}}
ops:
  - {name: out, op: sdpa, args: [q, k, v], scale: -0.5, is_causal: true}
returns: [out]
"""


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("triage.report", *arguments)


@pytest.fixture
def file(tmp_path: Path, case: Case) -> Path:
    return entry.save(Entry(case), tmp_path)


@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
@pytest.mark.worker
@pytest.mark.compiles
@pytest.mark.usefixtures("one_worker")
def test_a_real_bug_becomes_a_report_and_a_script_that_shows_it(tmp_path: Path) -> None:
    file, out = tmp_path / "bug.case.yaml", tmp_path / "out"
    file.write_text(SOFTMAX_OVER_QUERIES)
    done = report(file, "--out", out, "--explain", "1s")
    assert done.returncode == 0, done.stderr
    assert "[Inductor][CPU] attention with softmax over dim -2: output 0 is off by up to" in done.stdout
    text = (out / "report.md").read_text()
    assert '| `backend="eager"` | ok |' in text
    assert '| `backend="aot_eager"` | ok |' in text
    assert "\ntorch.testing.assert_close(results[1], results[0])\n```" in text
    assert '| `backend="inductor"` | wrong result |' in text
    assert "_sfdp_pattern_1_inference" in text
    assert "exits with 1 if the bug shows (here: 1)" in text
    assert "PyTorch version:" in text
    # The report ran it and says that it exits with 1.
    environment = {**os.environ, "TORCH_COMPILE_BACKEND": "eager"}
    command = [sys.executable, "repro.py"]
    assert subprocess.run(command, cwd=out, env=environment, timeout=300, check=False).returncode == 0


@pytest.mark.worker
@pytest.mark.compiles
@pytest.mark.usefixtures("one_worker", "no_environment")
@pytest.mark.skipif(not is_nan_with_a_negative_scale(), reason="this torch has no such bug")
def test_eager_that_is_wrong_becomes_a_report_and_a_script_that_compiles_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "bug.case.yaml", tmp_path / "out"
    file.write_text(NEGATIVE_SCALE)
    done = report(file, "--out", out, "--explain", "1s")
    assert done.returncode == 0, done.stderr
    about = "scaled_dot_product_attention with a negative scale and is_causal"
    assert done.stdout.startswith(f"[CPU] {about}: eager gives NaN or inf, float64 is finite (aten._scaled")
    text = (out / "report.md").read_text()
    assert "| run with |" not in text  # every way to run it says the same
    assert "eager inf, MATH backend" in text
    assert "exits with 1 if the bug shows (here: 1)" in text
    script = (out / "repro.py").read_text()
    assert "torch.compile" not in script
    (out / "right.py").write_text(script.replace("scale=-0.5", "scale=0.5"))
    assert subprocess.run([sys.executable, "right.py"], cwd=out, timeout=300, check=False).returncode == 0


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "{tmp}/out", "--device", "tpu"], 'error: Invalid value "tpu" for --device'),
        (["--out", "/dev/null/out"], "error: --out /dev/null/out: can't be written: Not a directory"),
        (["--out", "/proc/nope"], "error: --out /proc/nope: can't be written: No such file or directory"),
        (["--out", "{tmp}/out", "--timeout", "5"], "error: invalid timeout '5'"),
        (["--out", "{tmp}/out", "--python", "/nowhere/python"], "error: interpreter '/nowhere/python' does not start"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path: Path, file: Path, arguments: list[str], message: str) -> None:
    done = report(file, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


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
