"""`fuzz.compare --module` names the block, the way to run it, and the side that is right."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corpus.entry import load
from fuzz.evaluator import Evaluator
from fuzz.importing.importer import Block, ModuleImport
from fuzz.module_comparison import Answer, ModuleComparison, Row, Side, as_data, save_wrong_block, summarize
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.testing import check_module
from fuzz.worker_config import WorkerConfig
from generators.program.case import Case
from tests.command import ROOT, run_command
from tests.importing.modules import plain

MODULES, DECODER = "tests.importing.modules:", "tests.importing.decoder:decoder"


def plant(directory: Path, defect: str) -> Path:
    """An interpreter whose torch has a defect of `benchmarks/planted_torch`."""
    python = directory / f"python-{defect}"
    variables = f'ATTNFUZZ_PLANT={defect} PYTHONPATH="{ROOT / "benchmarks" / "planted_torch"}:$PYTHONPATH"'
    python.write_text(f'#!/bin/sh\nexec env {variables} "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def compare(tmp_path: Path, factory: str, *options: str | Path) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    """The exit code, and the rows by block and way."""
    answers = tmp_path / "answers.json"
    done = run_command("fuzz.compare", "--module", factory, "--json", answers, "--out", tmp_path / "cases", *options)
    assert "\n" not in done.stderr or done.returncode != 2, done.stderr
    rows = json.loads(answers.read_text(encoding="utf-8"))
    return done.returncode, {(row["block"] or row["type"], row["way"]): row for row in rows}


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("defect", "factory", "block", "first"),
    [
        ("scale_dropped", f"{MODULES}plain", "Plain", "matmul"),
        ("gradient_perturbed", f"{MODULES}training", "attn", ""),
        ("softmax_turned", DECODER, "attn", "softmax"),
        ("mask_filled_with_zero", DECODER, "attn", "masked_fill"),
        ("stale_base", DECODER, "attn", ""),
    ],
)
def test_a_new_torch_that_is_wrong_is_named(tmp_path: Path, defect: str, factory: str, block: str, first: str) -> None:
    old, new = sys.executable, plant(tmp_path, defect)
    code, rows = compare(tmp_path, factory, "--python", old, "--python", new, "--subject", "passes")
    row = rows[block, "passes"]
    assert (code, row["answer"], row["missing"], row["different"]) == (1, "new wrong", {}, "")
    assert row["first"].startswith(first)
    assert Path(row["case"]).is_file()
    assert f" -m triage.report {row['case']} --python {new} --out " in row["report"]
    assert rows[block, "eager"]["answer"] == "equal"
    assert "buffer cache after the call" in row["new"]["why"] or defect != "stale_base"


OK, WRONG, ERROR = Verdict.OK, Verdict.WRONG_RESULT, Verdict.COMPILE_ERROR


@pytest.mark.parametrize(
    ("old", "new", "answer", "fails"),
    [
        (OK, OK, Answer.ROUNDING, False),
        (WRONG, OK, Answer.OLD_WRONG, False),
        (OK, WRONG, Answer.NEW_WRONG, True),
        (WRONG, WRONG, Answer.BOTH_WRONG, True),
        (OK, ERROR, Answer.REFUSED, True),
        (ERROR, OK, Answer.ACCEPTED, False),
        (ERROR, ERROR, Answer.UNJUDGED, False),
        (OK, Verdict.SKIPPED, Answer.UNJUDGED, False),
    ],
)
def test_an_answer_follows_from_both_sides(old: Verdict, new: Verdict, answer: Answer, *, fails: bool) -> None:
    block = Block("attn", "Attention", 3, None, Counter())
    row = Row(block, "inductor", Side("2.13.0", old, ("a",)), Side("2.15.0", new, ("b",)))
    assert (row.answer, row.answer.is_failure) == (answer, fails)
    told = " ".join(summarize([row], [block], "my:factory", ["2.13.0", "2.15.0"]))
    assert ("attn" in told) == (fails or WRONG in (old, new))


def test_a_block_without_a_case_is_told_too(tmp_path: Path) -> None:
    block = Block("attn", "Attention", 3, None, Counter({"ragged": 2}))
    (row,) = ModuleComparison({}, ["inductor"], tmp_path).compare(block)
    told = as_data(row)
    assert (told["block"], told["way"], told["answer"], told["missing"]) == (
        "attn",
        "import",
        "not judged",
        {"ragged": 2},
    )


@pytest.mark.usefixtures("one_worker")
def test_one_torch_compares_eager_with_compiled(tmp_path: Path) -> None:
    code, rows = compare(tmp_path, f"{MODULES}block", "--subject", "passes")
    assert code == 0
    assert set(rows) == {(name, "passes") for name in ("Block", "attn", "norm")}
    assert {row["answer"] for row in rows.values()} <= {"equal", "changed within rounding"}


@pytest.mark.worker
def test_a_test_suite_sees_a_wrong_block(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="new wrong") as failed:
        check_module(plain, pythons=[str(plant(tmp_path, "scale_dropped"))], subject="passes")
    [case] = [word for word in str(failed.value).split() if word.endswith(".case.yaml")]
    assert load(Path(case)).found is not None


class Wrong(SimpleNamespace):
    """An evaluator by which programs with a softmax are wrong."""

    hello = Hello("2.15.0", sys.executable, "cpu", None, 1)

    def judge(self, case: Case, subject: str) -> SubjectResult:
        is_wrong = any(op.kind == "softmax" for op in case.ops)
        return SubjectResult(subject, Verdict.WRONG_RESULT if is_wrong else Verdict.OK)


@pytest.mark.worker
def test_the_smallest_block_that_is_wrong_gets_the_report(tmp_path: Path) -> None:
    evaluator = cast("Evaluator", Wrong())
    with ModuleImport(WorkerConfig(), f"{MODULES}block") as module:
        wrong = save_wrong_block(module, evaluator, tmp_path)
    assert wrong is not None
    assert load(wrong).note == f"{MODULES}block, attn"


def test_a_bad_module_is_refused(tmp_path: Path) -> None:
    done = run_command("fuzz.compare", "--module", f"{MODULES}raises", "--out", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][:6]) == (2, "error:")
    done = run_command("fuzz.compare", "--module", f"{MODULES}idle", "--subject", "passes", "--out", tmp_path)
    assert (done.returncode, "no block is judged" in done.stderr) == (2, True)
    done = run_command("fuzz.compare", "--module", f"{MODULES}block", "case.yaml")
    assert done.returncode == 2
