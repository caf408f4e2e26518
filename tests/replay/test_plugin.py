"""`pytest` on case files, as its users meet it."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corpus.entry import Entry, Expectation, Found, save
from generators.sampling.sample import sample
from tests.replay.conftest import FakePython

pytestmark = pytest.mark.worker

CASE = sample(1, 2)
URL = "https://example.org/1"
KNOWN = Expectation("known", URL, "<2.14", "inductor", "wrong_result")


def run(pytester: pytest.Pytester, python: Path, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-python", str(python), "-rA", *options)


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
    result = run(pytester, fake_python(verdict, torch=torch))
    result.assert_outcomes(**{outcome: 1})
    if outcome != "skipped":
        assert f"{path.name}::inductor" in result.stdout.str()
    assert reason in result.stdout.str()


def test_a_known_bug_fails_like_any_other_with_runxfail(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    save(Entry(CASE, expect=KNOWN), pytester.path)
    run(pytester, fake_python("wrong_result"), "--runxfail").assert_outcomes(failed=1)


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
    result = run(pytester, fake_python("ok", torch=torch, rejected="RuntimeError: no such thing"))
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*eager refuses the case: RuntimeError: no such thing*"])


def test_a_device_that_is_not_there_is_a_skip_with_its_reason(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE, expect=Expectation("pass", device="cuda")), pytester.path)
    result = run(pytester, fake_python("ok", unusable="no CUDA device is visible"))
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*no CUDA device is visible*"])


def test_numbers_reach_the_report(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    save(Entry(CASE), pytester.path)
    result = run(pytester, fake_python("wrong_result"), "--junit-xml", "report.xml")
    result.stdout.fnmatch_lines(["*verdict*", "inductor wrong_result: as told", "*rewrites: _sfdp_pattern_1"])
    properties = re.findall(r'property name="([^"]+)" value="([^"]+)"', (pytester.path / "report.xml").read_text())
    assert ("inductor verdict", "wrong_result") in properties
    assert ("inductor ratio", "12.5") in properties


def test_one_case_is_one_test_under_the_subjects_asked_for(pytester: pytest.Pytester, fake_python: FakePython) -> None:
    path = save(Entry(CASE), pytester.path)
    result = run(pytester, fake_python("ok"), "--case-subject", "passes", "--case-subject", "inductor")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"PASSED {path.name}::passes,inductor"])
    result = run(pytester, fake_python("ok"), "--case-subject", "magic")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["unknown subject 'magic'; there are inductor, passes"])


def test_a_function_of_ones_own_is_allowed_with_the_option_of_pytest(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE, found=Found("wrong_result", "my.kernels:attention")), pytester.path)
    result = run(pytester, fake_python("ok"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--case-subject my.kernels:attention"])


def test_a_broken_file_is_an_error_of_one_line_and_the_others_run(
    pytester: pytest.Pytester, fake_python: FakePython
) -> None:
    save(Entry(CASE), pytester.path)
    (pytester.path / "broken.case.yaml").write_text("case_format: 1\ndims: no\n")
    result = run(pytester, fake_python("ok"), "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*broken.case.yaml:2: dims: 'no' reads differently*"])


def test_collecting_imports_no_torch(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Entry(CASE), pytester.path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    script = (
        "import pytest, sys; pytest.main(['-p', 'fuzz.pytest_plugin', '--collect-only']); print('torch' in sys.modules)"
    )
    result = pytester.run(sys.executable, "-c", script)
    result.stdout.fnmatch_lines(["*1 test collected*", "False"])
