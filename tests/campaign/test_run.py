"""`python -m fuzz.run` as a user types it: options, budgets, help."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.ask.worker_config import WorkerConfig
from fuzz.campaign.options import (
    Budget,
    DiskFull,
    Options,
    StopCondition,
    StopReason,
    list_gpus,
    require_space,
    translate_disk_error,
)
from fuzz.campaign.session import RunResult, Sampler
from fuzz.cli import bind, call
from fuzz.durations import format_duration, parse_duration
from fuzz.run import run as run_campaigns
from fuzz.subjects import SUBJECTS
from generators.errors import UserError
from generators.program.portability import find_obstacle
from tests.campaign.fakes import options, setup
from tests.command import ROOT, load_command, run_command, run_python

COMMANDS = [f"fuzz.{name}" for name in ("run", "replay", "shrink", "show", "compare", "status")]
COMMANDS += [f"triage.{name}" for name in ("report", "cluster", "page")]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "fuzz.run", *arguments, cwd=cwd, PYTHONPATH=str(ROOT))


Begun = list[tuple[Options, Sampler]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """The options of campaigns that would begin, and the functions that draw their cases."""
    begun: Begun = []

    def run_campaign(options: Options, sampler: Sampler) -> RunResult:
        begun.append((options, sampler))
        return RunResult(new=0, interrupted=False, summary="")

    monkeypatch.setattr("fuzz.campaign.session.run_campaign", run_campaign)
    return begun


def test_campaigns_of_a_part_take_no_variants(begun: Begun, tmp_path: Path) -> None:
    for draw in (None, ["scan"]):
        run_campaigns(budget="5s", draw=draw, out=tmp_path)
    assert [options.engine for options, _ in begun] == ["guided", "random"]


@pytest.mark.parametrize("draw", [None, ["sort"]])
def test_campaigns_of_exporters_draw_portable_cases_alone(begun: Begun, tmp_path: Path, draw: list[str] | None) -> None:
    run_campaigns(budget="5s", draw=draw, subject=["openvino", "onnxruntime"], out=tmp_path)
    ((options, sampler),) = begun
    assert options.engine == "random"
    assert {find_obstacle(sampler(1, index), ("dynamic",)) for index in range(12)} == {""}


def test_without_a_ledger_no_bug_of_this_checkout_is_known(begun: Begun, tmp_path: Path) -> None:
    for ledger in (None, Path("/dev/null")):
        run_campaigns(budget="5s", ledger=ledger, out=tmp_path)
    assert [(bool(one.ledger and one.ledger.bugs), one.ignore_dirs) for one, _ in begun] == [
        (True, (ROOT / "corpus" / "known",)),
        (False, ()),
    ]


def test_settings_come_from_the_project_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.attnfuzz]\nbudget = "7"\nseeds = "x"\nshrink-time = "3s"\n')
    assert "'7'" in run_command("fuzz.run", cwd=tmp_path).stderr
    assert "'8'" in run_command("fuzz.run", "--budget", "8", cwd=tmp_path).stderr
    (tmp_path / "pyproject.toml").write_text('[tool.attnfuzz]\nbudgets = "7"\n')
    assert "[budgets]" in run_command("fuzz.run", cwd=tmp_path).stderr
    (tmp_path / "pyproject.toml").write_text("[tool.attnfuzz\n")
    assert "pyproject.toml" in run_command("fuzz.run", "--budget", "5s", cwd=tmp_path).stderr


def test_help_imports_neither_torch_nor_the_campaign() -> None:
    code = (
        "import sys; from fuzz import cli, run; cli.call(run.run, 'fuzz.run', ['--budget', '5']);"
        "print([m for m in sys.modules if m in ('torch', 'numpy', 'rich.live')])"
    )
    done = run_python("-c", code, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert "--budget" in run("--help").stdout


def test_help_ends_quietly_when_nobody_reads_it() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as nobody:
        command = [sys.executable, "-m", "fuzz.run", "--help"]
        done = subprocess.run(command, cwd=ROOT, stdout=nobody, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run_command(name, "--help").stdout
    examples = [line.split()[2:] for line in text.splitlines() if line.startswith("  python -m ")]
    assert len(examples) in (2, 3)
    assert max(map(len, text.splitlines())) <= 80
    assert {"0", "2", "3", "130"} <= {line.split()[0] for line in text.rpartition("codes:")[2].splitlines() if line}
    for command, *arguments in examples:
        bind(load_command(command), command, arguments)


def test_help_names_every_subject_and_says_which_run_by_default() -> None:
    default, named, rest = (run_campaigns.__doc__ or "").partition("Others run only if named")
    assert named
    for subject, spec in SUBJECTS.items():
        if subject != "eager":
            assert re.search(rf"\b{subject}\b", default if spec.default else rest), subject


def test_an_interpreter_without_our_packages_is_told_which_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    assert call(command, "fuzz.run", []) == 2
    assert "rich" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", Budget(seconds=90)),
        ("10m", Budget(seconds=600)),
        ("1h30m", Budget(seconds=5400)),
        ("1h1m1.5s", Budget(seconds=3661.5)),
        ("500x", Budget(cases=500)),
    ],
)
def test_time_and_cases_are_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        "10",
        "1.5",
        "",
        "x",
        "0s",
        "0x",
        "m",
        "10 minutes",
        "-5s",
        "5s3m",
        "1e3s",
        "nan",
        "infs",
        "99999999999h",
        "9999999999x",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(UserError, match=r"expected 90s|longer than 0 s|at least 1x"):
        Budget.parse(text)


def test_a_bare_number_lacks_its_unit() -> None:
    with pytest.raises(UserError, match=r"timeout '60'.*the unit is missing; expected 60s"):
        parse_duration("60", "timeout")


@pytest.mark.parametrize("text", ["45s", "3m20s", "1h05m", "2h", "5m", "1.5s"])
def test_durations_are_spelled_as_they_are_read(text: str) -> None:
    assert format_duration(parse_duration(text, "it")) == text


def test_the_first_reason_to_stop_counts() -> None:
    control = StopCondition(Budget(cases=3))
    assert (control.is_over, control.reason) == (False, StopReason.BUDGET)
    control.stop(StopReason.INTERRUPTED)
    control.kill()
    assert (control.is_over, control.is_overdue, control.reason) == (True, True, StopReason.INTERRUPTED)


def test_a_budget_of_time_ends_it() -> None:
    control = StopCondition(Budget(seconds=1e-9))
    control.begin()
    assert control.is_over and not control.is_stopped and control.seconds_left < 0


@pytest.mark.parametrize("error", [errno.EFBIG, errno.ENOSPC])
def test_a_file_at_its_largest_size_is_an_error_of_the_disk(tmp_path: Path, error: int) -> None:
    cause = OSError(error, os.strerror(error))
    assert isinstance(translate_disk_error(cause, tmp_path), DiskFull)
    wrapped = UserError("case.yaml: can't be written")
    wrapped.__cause__ = cause
    assert "case.yaml" in str(translate_disk_error(wrapped, tmp_path))


def test_a_limit_on_files_below_those_of_compilers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 * 2**10, resource.RLIM_INFINITY))
    with pytest.raises(UserError):
        WorkerConfig.from_options(None, "cpu", (), "60s", 4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    WorkerConfig.from_options(None, "cpu", (), "60s", 4096)


def test_only_the_disk_says_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**30))
    require_space(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    with pytest.raises(DiskFull):
        require_space(tmp_path)


def test_workers_take_turns_at_the_gpus_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    given = options(tmp_path, gpus=list_gpus())
    bound = [given.bind(setup(), number).environment()["CUDA_VISIBLE_DEVICES"] for number in range(4)]
    assert bound == ["GPU-a", "GPU-b", "GPU-c", "GPU-a"]
