"""`python -m fuzz.compare`, typed as a user types it, and the table of cases that several versions judged."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus.entry import Entry, load, save
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.versions import VersionChange, VersionRow, distinguish_versions, render_table
from tests.campaign.fakes import case, write_python
from tests.command import ROOT, run_command

WRONG = {
    "match": "softmax",
    "verdict": "wrong_result",
    "failure": {"kind": "raised", "error": "out", "text": "off"},
    "subjects": ["inductor"],
}
Make = Callable[..., Path]


@pytest.fixture
def python(tmp_path: Path) -> Make:
    """Makes an interpreter for `--python` that answers by rules."""

    def make(torch: str, *rules: dict[str, Any], **more: Any) -> Path:
        return write_python(tmp_path / f"python-{torch}-{len(list(tmp_path.iterdir()))}", torch, rules=rules, **more)

    return make


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A corpus of two cases."""
    for kinds in (("exp",), ("exp", "softmax")):
        save(Entry(case(*kinds)), tmp_path / "corpus")
    return tmp_path / "corpus"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("fuzz.compare", *arguments)


@pytest.mark.worker
@pytest.mark.parametrize(
    ("before", "after", "code", "told"),
    [
        (
            [],
            [WRONG],
            1,
            "regressed (1): passes in;2.12.1 ok, 2.13.0 wrong_result\n      out: off;: 1 regressed, 1 no change\n",
        ),
        ([WRONG], [], 0, "1 fixed, 1 no change"),
        ([], [{**WRONG, "do": "die"}], 1, "2.12.1 ok, 2.13.0 worker_died;1 regressed, 1 no change"),
        ([], [{**WRONG, "do": "time_out"}], 1, "2.12.1 ok, 2.13.0 timeout;1 regressed, 1 no change"),
        # It fails in the second check of a process, and the second opinion comes from a new process.
        ([], [{"match": "", "verdict": "wrong_result", "from_check": 2}], 0, "1 not reproducible, 1 no change"),
    ],
)
def test_what_changed_is_counted_and_decides_the_exit_code(
    python: Make, files: Path, before: list[dict[str, Any]], after: list[dict[str, Any]], code: int, told: str
) -> None:
    done = run("--python", python("2.12.1", *before), "--python", python("2.13.0", *after), files)
    assert done.returncode == code, done.stderr
    assert all(words in done.stdout for words in told.split(";"))


@pytest.mark.worker
def test_what_was_seen_is_recorded(python: Make, files: Path) -> None:
    path = next(path for path in files.iterdir() if "softmax" in path.read_text())
    done = run("--python", python("2.13.0", WRONG), "--python", python("2.12.1+cu130"), "--record", path)
    assert done.returncode == 0, done.stderr
    assert load(path).seen == {"2.12.1": "ok", "2.13.0": "wrong_result out"}
    assert list(load(path).seen) == ["2.12.1", "2.13.0"]


@pytest.mark.worker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_done(python: Make, tmp_path: Path, number: signal.Signals) -> None:
    for kinds in (("exp",), ("exp", "softmax")):
        save(Entry(case(*kinds)), tmp_path / "corpus" / str(len(kinds)))
    hangs = {**WRONG, "do": "hang"}
    marks = tmp_path / "child"
    other = python("2.13.0", hangs, child_pid=str(marks))
    command = [sys.executable, "-m", "fuzz.compare", "--python", str(python("2.12.1")), "--python", str(other)]
    process = subprocess.Popen([*command, str(tmp_path / "corpus")], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not marks.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "1 comparison of 2, then interrupted, torch 2.12.1, 2.13.0: 1 no change" in out


LABELS = ("2.12.1", "2.13.0", "2.14.0")


def result(verdict: str, error_type: str = "") -> SubjectResult:
    return SubjectResult("inductor", Verdict(verdict), failure=Raised(error_type) if error_type else None)


def row(*results: SubjectResult | str, name: str = "a.case.yaml") -> VersionRow:
    made = (given if isinstance(given, SubjectResult) else result(given) for given in results)
    return VersionRow(Path(name), "inductor", dict(zip(LABELS, made, strict=False)))


@pytest.mark.parametrize(
    ("verdicts", "change"),
    [
        (("ok", "wrong_result"), VersionChange.REGRESSED),
        (("ok", "ok", "compile_error"), VersionChange.REGRESSED),
        (("ok", "timeout", "wrong_result"), VersionChange.REGRESSED),
        (("wrong_result", "ok", "worker_died"), VersionChange.REGRESSED),
        (("skipped", "ok", "wrong_result"), VersionChange.REGRESSED),
        (("wrong_result", "ok"), VersionChange.FIXED),
        (("ok", "wrong_result", "rounding"), VersionChange.FIXED),
        (("wrong_result", "skipped", "ok"), VersionChange.FIXED),
        (("wrong_result", "compile_error"), VersionChange.FAILS),
        (("skipped", "wrong_result", "wrong_result"), VersionChange.FAILS),
        (("skipped", "wrong_result"), VersionChange.UNJUDGED),
        (("ok", "skipped"), VersionChange.UNJUDGED),
        (("ok", "rounding", "ill_conditioned"), VersionChange.SAME),
        (("ill_conditioned", "wrong_result"), VersionChange.UNJUDGED),
        (("wrong_result", "convention", "ok"), VersionChange.FIXED),
    ],
)
def test_what_became_of_a_case(verdicts: tuple[str, ...], change: VersionChange) -> None:
    assert row(*verdicts).change is change


def test_the_table_names_what_changed_and_counts_the_rest() -> None:
    rows = (
        row("ok", "wrong_result", name="bad.case.yaml"),
        row(result("compile_error", "KeyError"), result("ok"), name="good.case.yaml"),
        row("ok", "ok", name="quiet.case.yaml"),
    )
    shown = render_table(rows, LABELS[:2], 9)
    assert "quiet.case.yaml" not in shown
    assert "  bad.case.yaml under inductor: 2.12.1 ok, 2.13.0 wrong_result\n" in shown
    assert shown.endswith(
        "3 comparisons of 9, then interrupted, torch 2.12.1, 2.13.0: 1 regressed, 1 fixed, 1 no change"
    )
    assert "2.13.0 ok\n      KeyError\n" in shown


@pytest.mark.parametrize(
    ("torches", "runtimes", "subjects", "labels"),
    [
        (("2.13.0+cpu", "2.15.0"), ("2026.4.1", "2026.4.1"), ("openvino",), ["2.13.0", "2.15.0"]),
        (("2.13.0",) * 2, ("2025.4.0", "2026.4.1"), ("openvino",), ["openvino 2025.4.0", "openvino 2026.4.1"]),
        (("2.13.0",) * 2, ("2025.4.0", "2026.4.1"), ("inductor",), ["2.13.0", "2.13.0"]),
        (
            ("2.13.0", "2.15.0"),
            ("2025.4.0", "2026.4.1"),
            ("inductor", "openvino_sized"),
            ["2.13.0 with openvino 2025.4.0", "2.15.0 with openvino 2026.4.1"],
        ),
    ],
)
def test_labels_say_what_differs(
    torches: tuple[str, ...], runtimes: tuple[str, ...], subjects: tuple[str, ...], labels: list[str]
) -> None:
    pairs = zip(torches, runtimes, strict=True)
    hellos = [Hello(torch, "3.11", "cpu", "g++", 1, versions={"openvino": runtime}) for torch, runtime in pairs]
    assert distinguish_versions(hellos, subjects) == labels


def test_a_table_names_a_runtime_once() -> None:
    assert render_table([], ["openvino 2025.4.0", "openvino 2026.4.1"], 0).startswith(
        "0 comparisons, openvino 2025.4.0, 2026.4.1: "
    )
    assert render_table([], ["2.13.0", "2.15.0"], 0).startswith("0 comparisons, torch 2.13.0, 2.15.0: ")
    assert render_table([], ["2.13.0", "2.13.0 with fix.patch"], 0).startswith(
        "0 comparisons, torch 2.13.0, 2.13.0 with fix.patch: "
    )
