"""`python -m triage.verify_fix`, with a small package in the place of torch, and once with torch itself."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest

from corpus.causes import CauseKey, MechanismKind, Stage
from corpus.entry import Entry, save
from corpus.ledger import Bug, Ledger
from corpus.ledger import save as save_ledger
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.patched_torch import make_patched_torch, patched_torch
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol import SubjectResult, Verdict
from fuzz.versions import VersionRow
from tests.campaign.fakes import FAKE, case, raised
from tests.command import run_command
from triage.report.wording import describe_unmended
from triage.verify_fix import AFTER, BEFORE, Verification

pytestmark = pytest.mark.worker

BUGGY = "def softmax(x):\n    if x:\n        return x / 0\n    return x\n"
MENDED = BUGGY.replace("x / 0", "x / 1")
Run = Callable[..., subprocess.CompletedProcess[str]]


def diff(before: str, after: str, name: str) -> str:
    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(lines)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter whose torch has one function. Its workers find softmax wrong while that divides by 0, and log
    wrong once a comment says so."""
    torch = tmp_path / "site" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("")
    (torch / "lib" / "libtorch.so").write_text("compiled")
    (torch / "ops.py").write_text(BUGGY)
    wrong = {"verdict": "wrong_result", "failure": raised("out", "off")}
    script = tmp_path / "python"
    script.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import importlib.util, json, os, sys
        from pathlib import Path
        sys.path.insert(0, {str(torch.parent)!r})
        if sys.argv[1] == "-c":
            exec(sys.argv[2])
            sys.exit()
        first = Path(os.environ["PYTHONPATH"].split(":")[0], "torch", "ops.py")
        text = (first if first.exists() else Path({str(torch / "ops.py")!r})).read_text()
        rules = [{{"match": "softmax", **{wrong!r}}}] if "x / 0" in text else []
        rules += [{{"match": "exp", **{wrong!r}}}] if "breaks exp" in text else []
        os.execv({sys.executable!r}, [{sys.executable!r}, {str(FAKE)!r}, json.dumps({{"rules": rules}})])
        """)
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def run(tmp_path: Path, python: Path) -> Run:
    """Runs the command on a ledger with one bug, whose example is a softmax."""
    example = save(Entry(case("tanh", "softmax")), tmp_path / "known")
    save(Entry(case("exp")), tmp_path / "known")
    cause = CauseKey("inductor", Stage.CODEGEN, "", MechanismKind.RUNNING_RAISES)
    bug = Bug("bad", "a bug", cause=cause, decided_by=(), cases=(str(example.relative_to(tmp_path)),))
    save_ledger(Ledger(tmp_path / "ledger.yaml", (bug,)))

    def run_on(patch: str, *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "fix.patch").write_text(patch)
        options = [f"--ledger={tmp_path}/ledger.yaml", f"--patch={tmp_path}/fix.patch", f"--out={tmp_path}/out"]
        return run_command("triage.verify_fix", "bad", f"--python={python}", "--cases=5", "--quiet", *options, *more)

    return run_on


def test_a_patch_that_mends_the_example_and_changes_nothing_else_holds(run: Run) -> None:
    done = run(diff(BUGGY, MENDED, "torch/ops.py"), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["files"], list(told["examples"].values())) == (["torch/ops.py"], ["fixed"])
    assert (told["cases"], told["worse"], told["failing"], told["holds"]) == (5, {}, {}, True)


def test_cases_that_fail_as_before_are_told_apart_by_their_bugs() -> None:
    told = describe_unmended(4, {"other-bug": 3, "compile_error": 1})
    assert told.startswith("4 fail as without it: 3 by 1 other known bug, such as 3 of other-bug")
    assert "1 with the verdict compile error" in told
    assert describe_unmended(0, {}) == ""


def test_a_patched_copy_is_a_version_to_compare_with(run: Run, tmp_path: Path, python: Path) -> None:
    run(diff(BUGGY, MENDED, "torch/ops.py"))
    options = [f"--python={python}", f"--patch={tmp_path}/fix.patch", "--quiet"]
    done = run_command("fuzz.compare", *options, str(tmp_path / "known"))
    assert done.returncode == 0, done.stderr
    assert "fixed (1)" in done.stdout
    assert "with fix.patch ok" in done.stdout


def test_a_patch_that_does_not_mend_is_exit_code_1(run: Run) -> None:
    done = run(diff(BUGGY, BUGGY.replace("if x", "if not x"), "torch/ops.py"))
    assert done.returncode == 1, done.stderr
    assert "no example fails before and passes after" in done.stdout


def test_a_case_that_fails_from_the_patch_on_is_saved_and_is_exit_code_1(run: Run, tmp_path: Path) -> None:
    done = run(diff(BUGGY, MENDED.replace("x / 1", "x / 1  # breaks exp"), "torch/ops.py"))
    assert done.returncode == 1, done.stderr
    assert "changed for the worse" in done.stdout
    assert list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        (Verdict.WRONG_RESULT, Verdict.ILL_CONDITIONED, False),
        (Verdict.WRONG_RESULT, Verdict.COMPILE_ERROR, True),
        (Verdict.OK, Verdict.ILL_CONDITIONED, True),
    ],
)
def test_a_finding_that_is_gone_is_no_change_for_the_worse(before: Verdict, after: Verdict, is_worse: bool) -> None:
    judged = {BEFORE: SubjectResult("passes", before), AFTER: SubjectResult("passes", after)}
    found = Verification("bad", ["torch/ops.py"], 0, rows=[VersionRow(Path("case"), "passes", judged)])
    assert bool(found.worse) is is_worse


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (diff(MENDED, BUGGY, "torch/ops.py"), "does not apply"),
        (diff("", "x = 1\n", "other.py"), "is not a Python file of torch/"),
        ("no diff", "does not apply"),
    ],
)
def test_a_patch_that_does_not_apply_is_one_line(run: Run, patch: str, why: str) -> None:
    done = run(patch)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert why in done.stderr


def test_the_copy_has_the_change_and_the_original_stays(tmp_path: Path, python: Path) -> None:
    (tmp_path / "fix.patch").write_text(diff(BUGGY, MENDED, "torch/ops.py"))
    torch = tmp_path / "site" / "torch"
    before = {path: (path.lstat().st_mtime_ns, path.read_bytes()) for path in torch.rglob("*.*")}
    make_patched_torch(tmp_path / "fix.patch", str(python), tmp_path / "new")
    assert (tmp_path / "new" / "torch" / "ops.py").read_text() == MENDED
    (tmp_path / "new" / "torch" / "ops.py").write_text("")
    assert before == {path: (path.lstat().st_mtime_ns, path.read_bytes()) for path in torch.rglob("*.*")}
    assert (tmp_path / "new" / "torch" / "lib" / "libtorch.so").read_text() == "compiled"


def test_workers_run_the_changed_torch(tmp_path: Path) -> None:
    name = "torch/_inductor/fx_passes/joint_graph.py"
    original = Path(
        subprocess.check_output([sys.executable, "-c", "import torch; print(torch.__path__[0])"], text=True).strip()
    )
    text = (original.parent / name).read_text()
    changed = text.replace("    lazy_init(input_device)\n", "    raise RuntimeError('planted')\n", 1)
    (tmp_path / "fix.patch").write_text(diff(text, changed, name))
    config = WorkerConfig(timeout=120, memory_mib=8192)
    with patched_torch(config, tmp_path / "fix.patch") as patched, open_evaluator(patched) as evaluator:
        assert evaluator.ask(Question(case("exp"), ("passes",))).only.verdict is Verdict.COMPILE_ERROR
