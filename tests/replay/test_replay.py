"""`fuzz.replay`, `fuzz.show` and `pytest` on case files, as their users meet them."""

import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch._inductor.config as inductor_config

from corpus.entry import Entry, Expectation, Found, load_directory, save
from fuzz.campaign import investigation
from generators.program.emit import source
from generators.program.settings import SETTINGS, list_available
from generators.sampling.sample import sample
from tests.command import ROOT, run_command
from tests.replay.conftest import FakePython

SEEDS = ROOT / "corpus" / "seeds"
CASE = sample(1, 2)


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command(f"fuzz.{module}", *arguments)


@pytest.mark.worker
def test_show_prints_the_text_that_runs(tmp_path: Path) -> None:
    path = save(Entry(CASE), tmp_path)
    command = [sys.executable, "-m", "fuzz.show", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, source(CASE) + "\n", "")


@pytest.mark.worker
def test_show_tells_several_cases_apart(tmp_path: Path) -> None:
    paths = [save(Entry(sample(1, i)), tmp_path) for i in (3, 4)]
    done = run("show", tmp_path)
    assert done.stdout.count("class Module") == 2
    assert all(f"# {path}\n" in done.stdout for path in paths)


@pytest.mark.worker
@pytest.mark.parametrize(
    ("expectation", "verdict", "code", "words"),
    [
        (None, "ok", 0, "as expected"),
        (None, "wrong_result", 1, "not as expected"),
        (Expectation("known", "https://example.org/1"), "wrong_result", 0, "still there"),
        (Expectation("known", "https://example.org/1"), "ok", 1, "expected a finding (https://example.org/1)"),
    ],
)
def test_the_exit_code_says_whether_all_was_as_expected(
    tmp_path: Path, fake_python: FakePython, expectation: Expectation | None, verdict: str, code: int, words: str
) -> None:
    path = save(Entry(CASE, expect=expectation), tmp_path)
    done = run("replay", path, "--python", fake_python(verdict))
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"{path}: ")
    assert words in done.stdout
    assert f"inductor {verdict}: as told\n    torch._dynamo.utils.same: False\n    rewrites: _sfdp" in done.stdout


@pytest.mark.worker
@pytest.mark.parametrize(
    ("verdict", "torch", "code", "words"),
    [
        ("wrong_result", "2.13.0", 0, "still there under torch 2.13.0\n"),
        ("ok", "2.13.0", 1, "no longer there under torch 2.13.0\n"),
        ("nonfinite", "2.13.0", 1, "not as expected under torch 2.13.0\n"),
        ("ok", "2.14.0", 0, "gone, as expected under torch 2.14.0\n"),
    ],
)
def test_what_a_campaign_found_is_not_called_known(
    tmp_path: Path, fake_python: FakePython, verdict: str, torch: str, code: int, words: str
) -> None:
    path = save(Entry(CASE, found=Found("wrong_result", "inductor", torch="2.13.0")), tmp_path)
    done = run("replay", path, "--python", fake_python(verdict, torch=torch))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"{path}: {words}")
    assert "known" not in done.stdout


@pytest.mark.worker
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "case file"),
        (["nowhere.case.yaml"], "nowhere.case.yaml"),
        (["README"], "README"),
        (["pyproject.toml"], "pyproject.toml:2"),
        ([SEEDS, "--device", "tpu"], "--device"),
        ([SEEDS, "--timeout", "60"], "'60'"),
        ([SEEDS, "--python", "/nowhere/python"], "'/nowhere/python'"),
        ([SEEDS, "--subject", "magic"], "'magic'"),
        ([SEEDS, "--subjet", "passes"], "--subjet"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    fake_python: FakePython, arguments: list[str | Path], named: str
) -> None:
    if "--python" not in arguments:
        arguments = [*arguments, "--python", fake_python("ok")]
    done = run("replay", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.worker
@pytest.mark.usefixtures("one_worker")
def test_a_torch_without_a_setting_skips_the_case_and_names_it(tmp_path: Path) -> None:
    has = list_available(version("torch"), "cpu")
    lacked = [name for name, one in SETTINGS.items() if "cpu" in one.devices and name not in has]
    lacked = [name for name in lacked if not hasattr(inductor_config, name)]  # others are there and do nothing
    if not lacked:
        pytest.skip("this torch has every setting")
    case = replace(CASE, settings=((lacked[0], SETTINGS[lacked[0]].values[0]),))
    done = run("replay", save(Entry(case), tmp_path))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if lacked[0] in line and version("torch") in line]


@pytest.mark.worker
@pytest.mark.usefixtures("one_worker")
def test_the_reported_pattern_11_is_rounding_and_the_numbers_say_so() -> None:
    # `passes` applies the same rewrites as `inductor`; pytest on corpus/seeds replays it under the latter.
    done = run("replay", SEEDS / "sfdp-pattern-11-single-head.case.yaml", "--subject", "passes")
    assert done.returncode == 0, done.stderr
    assert "as expected" in done.stdout
    assert "passes rounding: " in done.stdout
    assert "largest error of compiled" in done.stdout
    assert "largest error of eager" in done.stdout
    assert "_sfdp_pattern_" in done.stdout


@pytest.mark.worker
def test_an_interrupt_of_shrinking_saves_the_smallest_case_so_far(
    tmp_path: Path, fake_python: FakePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])

    def fail_once(*_: object, **__: object) -> bool:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr(investigation, "is_same_failure", fail_once)
    path = save(Entry(CASE), tmp_path / "given")
    done = run("shrink", path, "--python", fake_python("wrong_result"), "--out", tmp_path / "small")
    assert done.returncode == 130
    (entry,) = load_directory(tmp_path / "small").values()
    assert entry.case != CASE and entry.found is not None


URL = "https://example.org/1"
KNOWN = Expectation("known", URL, "<2.14", "inductor", "wrong_result")


def run_pytest(pytester: pytest.Pytester, python: Path, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-python", str(python), "-rA", *options)


@pytest.mark.worker
@pytest.mark.parametrize(
    ("expectation", "verdict", "torch", "outcome", "reason"),
    [
        (None, "ok", "2.13.0", "passed", ""),
        (None, "wrong_result", "2.13.0", "failed", "expected no finding: inductor: wrong_result, as told"),
        (Expectation("pass"), "ill_conditioned", "2.13.0", "passed", ""),
        (Expectation("rounding"), "rounding", "2.13.0", "passed", ""),
        (Expectation("rounding"), "ok", "2.13.0", "passed", ""),
        (
            Expectation("rounding"),
            "ill_conditioned",
            "2.13.0",
            "failed",
            "expected rounding: inductor: ill_conditioned",
        ),
        (Expectation("rounding"), "nonfinite", "2.13.0", "failed", "expected no finding: inductor: nonfinite"),
        (KNOWN, "wrong_result", "2.13.0", "xfailed", URL),
        (KNOWN, "rounding", "2.13.0", "failed", f"expected wrong_result ({URL}) in torch 2.13.0: inductor: rounding"),
        (KNOWN, "compile_error", "2.13.0", "failed", f"expected wrong_result ({URL}) in torch 2.13.0: inductor: comp"),
        (KNOWN, "ok", "2.14.0", "passed", ""),
        (KNOWN, "wrong_result", "2.14.0", "failed", f"{URL} is not expected in torch 2.14.0: inductor: wrong_result"),
        (Expectation("pass"), "skipped", "2.13.0", "skipped", "as told"),
        (Expectation("pass", reaches=("_sfdp_pattern_1",)), "ok", "2.13.0", "passed", ""),
        (
            Expectation("pass", reaches=("op aten.bmm", "_sfdp_pattern_9")),
            "ok",
            "2.13.0",
            "failed",
            "no longer reaches op aten.bmm, _sfdp_pattern_9 under inductor in torch 2.13.0; rewrites: _sfdp_pattern_1",
        ),
        (Expectation("pass", versions="<2.13", reaches=("op aten.bmm",)), "ok", "2.13.0", "passed", ""),
    ],
)
def test_expectations(
    pytester: pytest.Pytester,
    fake_python: FakePython,
    expectation: Expectation | None,
    verdict: str,
    torch: str,
    outcome: str,
    reason: str,
) -> None:
    path = save(Entry(CASE, expect=expectation), pytester.path)
    result = run_pytest(pytester, fake_python(verdict, torch=torch))
    result.assert_outcomes(**{outcome: 1})
    if outcome != "skipped":
        assert f"{path.name}::inductor" in result.stdout.str()
    assert reason in result.stdout.str()


OF_OPENVINO = Expectation("known", versions="openvino>=2026", subject="openvino", verdict="wrong_result")


@pytest.mark.worker
@pytest.mark.parametrize(
    ("openvino", "verdict", "outcome", "reason"),
    [
        ("2026.4.1", "wrong_result", "xfailed", "the recorded bug"),
        ("2026.4.1", "ok", "failed", "in openvino 2026.4.1: openvino: ok"),
        ("2025.4.0", "ok", "passed", ""),
        ("2025.4.0", "wrong_result", "failed", "not expected in openvino 2025.4.0"),
    ],
)
def test_a_bug_of_another_compiler_is_expected_in_the_versions_of_its_runtime(
    pytester: pytest.Pytester, fake_python: FakePython, openvino: str, verdict: str, outcome: str, reason: str
) -> None:
    save(Entry(CASE, expect=OF_OPENVINO), pytester.path)
    result = run_pytest(pytester, fake_python(verdict, openvino=openvino))
    result.assert_outcomes(**{outcome: 1})
    assert reason in result.stdout.str()


@pytest.mark.worker
def test_a_known_bug_fails_like_any_other_with_runxfail(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    save(Entry(CASE, expect=KNOWN), pytester.path)
    run_pytest(pytester, fake_python("wrong_result"), "--runxfail").assert_outcomes(failed=1)


@pytest.mark.worker
@pytest.mark.parametrize(
    ("expectation", "torch", "outcome"),
    [
        (None, "2.13.0", "failed"),
        (KNOWN, "2.13.0", "failed"),
        (KNOWN, "2.15.0", "failed"),
        (replace(KNOWN, versions=">=2.15"), "2.13.0+cpu", "skipped"),
        (replace(KNOWN, versions=">=2.15"), "2.15.0", "failed"),
    ],
)
def test_a_case_that_eager_refuses_fails_unless_its_bug_is_of_later_versions(
    pytester: pytest.Pytester, fake_python: FakePython, expectation: Expectation | None, torch: str, outcome: str
) -> None:
    save(Entry(CASE, expect=expectation), pytester.path)
    result = run_pytest(pytester, fake_python("ok", torch=torch, rejected="RuntimeError: no such thing"))
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*eager refuses the case: RuntimeError: no such thing*"])


@pytest.mark.worker
def test_a_device_that_is_not_there_is_a_skip_with_its_reason(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE, expect=Expectation("pass", device="cuda")), pytester.path)
    result = run_pytest(pytester, fake_python("ok", unusable="no CUDA device is visible"))
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*no CUDA device is visible*"])


@pytest.mark.worker
def test_numbers_reach_the_report(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    save(Entry(CASE), pytester.path)
    result = run_pytest(pytester, fake_python("wrong_result"), "--junit-xml", "report.xml")
    result.stdout.fnmatch_lines(["*verdict*", "inductor wrong_result: as told", "*rewrites: _sfdp_pattern_1"])
    properties = re.findall(r'property name="([^"]+)" value="([^"]+)"', (pytester.path / "report.xml").read_text())
    assert ("inductor verdict", "wrong_result") in properties
    assert ("inductor ratio", "12.5") in properties


@pytest.mark.worker
def test_one_case_is_one_test_under_the_subjects_asked_for(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    path = save(Entry(CASE), pytester.path)
    result = run_pytest(pytester, fake_python("ok"), "--case-subject", "passes", "--case-subject", "inductor")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"PASSED {path.name}::passes,inductor"])
    result = run_pytest(pytester, fake_python("ok"), "--case-subject", "magic")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["unknown subject 'magic'; there are inductor, passes, openvino"])


@pytest.mark.worker
def test_a_function_of_ones_own_is_allowed_with_the_option_of_pytest(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE, found=Found("wrong_result", "my.kernels:attention")), pytester.path)
    result = run_pytest(pytester, fake_python("ok"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--case-subject my.kernels:attention"])


@pytest.mark.worker
def test_a_broken_file_is_an_error_of_one_line_and_the_others_run(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE), pytester.path)
    (pytester.path / "broken.case.yaml").write_text("case_format: 1\ndims: no\n")
    result = run_pytest(pytester, fake_python("ok"), "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*broken.case.yaml:2: dims: 'no' reads differently*"])


@pytest.mark.worker
def test_collecting_imports_no_torch(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Entry(CASE), pytester.path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    script = (
        "import pytest, sys; pytest.main(['-p', 'fuzz.pytest_plugin', '--collect-only']); print('torch' in sys.modules)"
    )
    result = pytester.run(sys.executable, "-c", script)
    result.stdout.fnmatch_lines(["*1 test collected*", "False"])
