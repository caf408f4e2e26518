import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.cli import call

ROOT = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz.run", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--budget requires an argument"),
        (("--budget", "10"), "budget '10' is not understood: the unit is missing; expected 90s, 10m, 1h30m or 500x"),
        (("--budget", "5s", "--subject", "tpu"), "unknown subject 'tpu': there are passes, inductor, "),
        (("--budget", "5s", "--subject", "a.b:"), "unknown subject 'a.b:'"),
        (("--budget", "5s", "--device", "tpu"), "unknown device 'tpu'"),
        (("--budget", "5s", "--workers", "0"), "--workers 0: at least 1"),
        (("--budget", "5s", "--seed", "-3"), "--seed -3: a whole number from 0 on"),
        (("--budget", "5s", "--memory", "10"), "--memory 10: "),
        (("--budget", "5s", "--timeout", "5"), "timeout '5' is not understood: the unit is missing"),
        (("--budget", "5s", "--frobnicate"), "--frobnicate"),
        (("--budget", "5s", "--out", "/dev/null/run"), "--out /dev/null/run: can't be written: Not a directory"),
        (
            ("--budget", "5s", "--corpus", "/dev/null/found"),
            "--corpus /dev/null/found: can't be written: Not a directory",
        ),
        (("--budget", "5s", "--ledger", "none.yaml"), "none.yaml: can't be read as a ledger: No such file"),
        (("--budget", "5s", "--python", "/nonexistent"), "interpreter '/nonexistent' does not start: No such file"),
        (("--budget", "5s", "--against", "/nonexistent"), "interpreter '/nonexistent' does not start: No such file"),
        (
            ("--budget", "5s", "--python", "/bin/true"),
            "the worker under /bin/true can't be used: ended with exit code 0",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


def test_settings_come_from_the_project_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.attnfuzz]\nbudget = "7"\nworkers = 3\n')
    assert "budget '7' is not understood" in run(cwd=tmp_path).stderr
    assert "budget '8' is not understood" in run("--budget", "8", cwd=tmp_path).stderr
    (tmp_path / "pyproject.toml").write_text('[tool.attnfuzz]\nbudgets = "7"\n')
    assert "[tool.attnfuzz] has no setting 'budgets'; there are against, budget, corpus" in run(cwd=tmp_path).stderr
    (tmp_path / "pyproject.toml").write_text("[tool.attnfuzz\n")
    assert "not readable as TOML" in run("--budget", "5s", cwd=tmp_path).stderr


def test_help_imports_neither_torch_nor_the_campaign() -> None:
    code = (
        "import sys; from fuzz import door, run; door.call(run.run, 'fuzz.run', ['--budget', '5']);"
        "print([m for m in sys.modules if m in ('torch', 'numpy', 'rich.live')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "--budget" in run("--help").stdout


def test_an_interpreter_without_our_packages_is_told_which_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    assert call(command, "fuzz.run", []) == 2
    assert "has no rich: use .venv/bin/python" in capsys.readouterr().err
