"""`fuzz.replay`, `fuzz.show` and `pytest` on case files, as their users meet them."""

import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch._inductor.config as inductor_config

from corpus.entry import Entry, Expectation, Found, load_directory, save
from fuzz.campaign import investigation
from generators.program.emit import source
from generators.program.settings import SETTINGS, list_available
from generators.sampling.sample import sample
from tests.command import ROOT, run_command, run_python
from tests.replay.conftest import FakePython

SEEDS = ROOT / "corpus" / "seeds"
CASE = sample(1, 2)


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command(f"fuzz.{module}", *arguments)


@pytest.mark.worker
def test_show_prints_the_text_that_runs(tmp_path: Path) -> None:
    path = save(Entry(CASE), tmp_path)
    done = run_python("-m", "fuzz.show", path, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, source(CASE) + "\n", "")


@pytest.mark.worker
def test_show_tells_several_cases_apart(tmp_path: Path) -> None:
    paths = [save(Entry(sample(1, i)), tmp_path) for i in (3, 4)]
    done = run("show", tmp_path)
    assert done.stdout.count("class Module") == 2
    assert all(f"# {path}\n" in done.stdout for path in paths)


URL = "https://example.org/1"
KNOWN = Expectation("known", URL, "<2.14", "inductor", "wrong_result")
FOUND = Found("wrong_result", "inductor", torch="2.13.0")


@pytest.mark.worker
@pytest.mark.parametrize(
    ("entry", "verdict", "torch", "code", "words"),
    [
        (Entry(CASE), "ok", "2.13.0", 0, "as expected"),
        (Entry(CASE), "wrong_result", "2.13.0", 1, "not as expected"),
        (Entry(CASE, expect=Expectation("known", URL)), "wrong_result", "2.13.0", 0, "still there"),
        (Entry(CASE, expect=Expectation("known", URL)), "ok", "2.13.0", 1, f"expected a finding ({URL})"),
        # What a campaign found is not called known.
        (Entry(CASE, found=FOUND), "wrong_result", "2.13.0", 0, ": still there under torch 2.13.0\n"),
        (Entry(CASE, found=FOUND), "ok", "2.13.0", 1, ": no longer there under torch 2.13.0\n"),
        (Entry(CASE, found=FOUND), "nonfinite", "2.13.0", 1, ": not as expected under torch 2.13.0\n"),
        (Entry(CASE, found=FOUND), "ok", "2.14.0", 0, ": gone, as expected under torch 2.14.0\n"),
    ],
)
def test_the_exit_code_says_whether_all_was_as_expected(
    tmp_path: Path, fake_python: FakePython, entry: Entry, verdict: str, torch: str, code: int, words: str
) -> None:
    path = save(entry, tmp_path)
    done = run("replay", path, "--python", fake_python(verdict, torch=torch))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"{path}: ") and words in done.stdout
    assert f"inductor {verdict}: as told\n    torch._dynamo.utils.same: False\n    rewrites: _sfdp" in done.stdout
    assert not entry.found or "known" not in done.stdout


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


def run_pytest(pytester: pytest.Pytester, python: Path, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-python", str(python), "-rA", *options)


OF_OPENVINO = Expectation("known", versions="openvino>=2026", subject="openvino", verdict="wrong_result")
LATER = replace(KNOWN, versions=">=2.15")
NO_LONGER = "no longer reaches op aten.bmm, _sfdp_pattern_9 under inductor in torch 2.13.0; rewrites: _sfdp_pattern_1"
REFUSED = {"rejected": "RuntimeError: no such thing"}
REFUSES = "eager refuses the case: RuntimeError: no such thing"
NO_CUDA = {"unusable": "no CUDA device is visible", "unusable_with": "--device cuda"}


@pytest.mark.worker
@pytest.mark.parametrize(
    ("expectation", "verdict", "more", "outcome", "reason"),
    [
        (None, "ok", {}, "passed", ""),
        (None, "wrong_result", {}, "failed", "expected no finding: inductor: wrong_result, as told"),
        (Expectation("pass"), "ill_conditioned", {}, "passed", ""),
        (Expectation("rounding"), "rounding", {}, "passed", ""),
        (Expectation("rounding"), "ok", {}, "passed", ""),
        (Expectation("rounding"), "ill_conditioned", {}, "failed", "expected rounding: inductor: ill_conditioned"),
        (Expectation("rounding"), "nonfinite", {}, "failed", "expected no finding: inductor: nonfinite"),
        (KNOWN, "wrong_result", {}, "xfailed", URL),
        (KNOWN, "rounding", {}, "failed", f"expected wrong_result ({URL}) in torch 2.13.0: inductor: rounding"),
        (KNOWN, "compile_error", {}, "failed", f"expected wrong_result ({URL}) in torch 2.13.0: inductor: comp"),
        (KNOWN, "ok", {"torch": "2.14.0"}, "passed", ""),
        (KNOWN, "wrong_result", {"torch": "2.14.0"}, "failed", f"{URL} is not expected in torch 2.14.0: inductor: wr"),
        (Expectation("pass"), "skipped", {}, "skipped", "as told"),
        (Expectation("pass", reaches=("_sfdp_pattern_1",)), "ok", {}, "passed", ""),
        (Expectation("pass", reaches=("op aten.bmm", "_sfdp_pattern_9")), "ok", {}, "failed", NO_LONGER),
        (Expectation("pass", versions="<2.13", reaches=("op aten.bmm",)), "ok", {}, "passed", ""),
        (OF_OPENVINO, "wrong_result", {}, "xfailed", "the recorded bug"),
        (OF_OPENVINO, "ok", {}, "failed", "in openvino 2026.4.1: openvino: ok"),
        (OF_OPENVINO, "ok", {"openvino": "2025.4.0"}, "passed", ""),
        (OF_OPENVINO, "wrong_result", {"openvino": "2025.4.0"}, "failed", "not expected in openvino 2025.4.0"),
        # A case that eager refuses fails, unless its bug is of later versions.
        (None, "ok", REFUSED, "failed", REFUSES),
        (KNOWN, "ok", REFUSED, "failed", REFUSES),
        (KNOWN, "ok", REFUSED | {"torch": "2.15.0"}, "failed", REFUSES),
        (LATER, "ok", REFUSED | {"torch": "2.13.0+cpu"}, "skipped", REFUSES),
        (LATER, "ok", REFUSED | {"torch": "2.15.0"}, "failed", REFUSES),
        (Expectation("pass", device="cuda"), "ok", NO_CUDA, "skipped", "no CUDA device is visible"),
    ],
)
def test_expectations(
    pytester: pytest.Pytester,
    fake_python: FakePython,
    expectation: Expectation | None,
    verdict: str,
    more: dict[str, Any],
    outcome: str,
    reason: str,
) -> None:
    path = save(Entry(CASE, expect=expectation), pytester.path)
    result = run_pytest(pytester, fake_python(verdict, **more))
    result.assert_outcomes(**{outcome: 1})
    if outcome != "skipped":
        assert f"{path.name}::" in result.stdout.str()
    assert reason in result.stdout.str()


@pytest.mark.worker
def test_a_known_bug_fails_like_any_other_with_runxfail(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    save(Entry(CASE, expect=KNOWN), pytester.path)
    run_pytest(pytester, fake_python("wrong_result"), "--runxfail").assert_outcomes(failed=1)


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
    result.stdout.fnmatch_lines(["unknown subject 'magic'; there are passes, inductor, *openvino*"])


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
