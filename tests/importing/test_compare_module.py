"""`fuzz.compare --module` names the block, the way to run it, and the side that is right."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from corpus.entry import load
from fuzz.ask.worker_config import WorkerConfig
from fuzz.importing.importer import Block
from fuzz.module_answer import Answer, ModuleRow, Side, as_data, summarize
from fuzz.module_comparison import judge_modules, open_comparison, save_wrong_block
from fuzz.protocol import Verdict
from fuzz.testing import check_module
from tests.command import ROOT, run_command
from tests.importing.modules import plain

MODULES, DECODER = "tests.importing.modules:", "tests.importing.decoder:decoder"


def write_python(directory: Path, name: str, **variables: str | Path) -> Path:
    """An interpreter that has variables in its environment. What is in PYTHONPATH goes before what is there."""
    python, path = directory / f"python-{name}", variables.pop("PYTHONPATH", ROOT)
    given = " ".join(f"{key}={value}" for key, value in variables.items())
    python.write_text(f'#!/bin/sh\nexec env {given} PYTHONPATH="{path}:$PYTHONPATH" "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def plant(directory: Path, defect: str) -> Path:
    """An interpreter whose torch has a defect of `benchmarks/planted_torch`."""
    return write_python(directory, defect, ATTNFUZZ_PLANT=defect, PYTHONPATH=ROOT / "benchmarks" / "planted_torch")


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


@pytest.mark.usefixtures("one_worker")
def test_a_fusion_that_a_new_torch_lost_is_told_beside_right_results(tmp_path: Path) -> None:
    pythons = ("--python", sys.executable, "--python", plant(tmp_path, "fusion_lost"), "--subject", "passes")
    code, rows = compare(tmp_path, f"{MODULES}plain", *pythons)
    row = rows["Plain", "passes"]
    old, new = (row[side]["label"] for side in ("old", "new"))
    # Without the fusion the graph keeps what smaller rewrites match.
    smaller = {"bmm_to_mm": [new], "div_softmax_pattern": [new]}
    assert row["changed_rewrites"] == {"_sfdp_pattern_1_inference": [old], **smaller}
    assert (code, row["answer"]) == (0, "changed within rounding")

    done = run_command("fuzz.compare", *pythons, ROOT / "corpus/seeds/patterns/sfdp-01-inference.case.yaml")
    assert done.returncode == 0, done.stderr
    assert f"      in {old}, not in {new}: _sfdp_pattern_1_inference\n" in done.stdout
    assert done.stdout.endswith("1 no change, 1 with other rewrites\n")


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
    row = ModuleRow(block, "inductor", Side("2.13.0", old, ("a",)), Side("2.15.0", new, ("b",)))
    assert (row.answer, row.answer.is_failure) == (answer, fails)
    told = " ".join(summarize([row], "my:factory", ["2.13.0", "2.15.0"]))
    assert ("attn" in told) == (fails or WRONG in (old, new))


@pytest.mark.parametrize(("missing", "is_live"), [(Counter(), True), (Counter({"ragged": 2}), False)])
def test_what_a_case_leaves_out_is_never_called_equal(missing: Counter[str], *, is_live: bool) -> None:
    block = Block("attn", "Attention", 3, None, missing)
    row = ModuleRow(block, "inductor", Side("2.13.0", OK, ("a",)), Side("2.15.0", OK, ("a",)), is_live=is_live)
    assert row.answer is (Answer.EQUAL if is_live else Answer.IN_PART)
    assert row.answer.is_partial is not is_live
    assert (as_data(row)["live"], as_data(row)["missing"]) == (is_live, dict(missing))


@pytest.mark.usefixtures("one_worker")
def test_one_torch_compares_eager_with_compiled(tmp_path: Path) -> None:
    code, rows = compare(tmp_path, f"{MODULES}block", "--subject", "passes")
    assert code == 0
    assert set(rows) == {(name, "passes") for name in ("Block", "attn", "norm", "norm2")}
    assert {row["answer"] for row in rows.values()} <= {"equal", "within rounding"}


@pytest.mark.worker
def test_a_compiler_of_the_users_is_judged_in_what_it_promises(tmp_path: Path) -> None:
    """The module is in training, and gives tuples; its first operations are views."""
    names = ("declared", "refuses_softmax", "flattens", "turns_softmax")
    subjects = [f"tests.check.planted_compilers:{name}" for name in names]
    code, rows = compare(tmp_path, f"{MODULES}written_training", *(w for name in subjects for w in ("--subject", name)))
    told = [rows["Written", subject]["answer"] for subject in subjects]
    assert (code, told[0], told[3]) == (1, "right at bfloat16, which the compiler declares", "wrong")
    assert told[1].startswith("refused because ") and "softmax" in told[1]
    assert told[2] in ("equal", "within rounding")
    wrong = rows["Written", subjects[3]]
    assert {row["mode"] for row in rows.values()} == {"inference"}
    assert (wrong["eager"]["verdict"], wrong[subjects[3]]["verdict"]) == ("ok", "wrong_result")
    assert "softmax" in wrong["first"]
    case = load(Path(wrong["case"]))
    assert (case.case.mode, case.subject) == ("inference", subjects[3])


@pytest.mark.worker
def test_a_compiler_that_ends_its_process_costs_no_other_answer(tmp_path: Path) -> None:
    """It is told as such, in a case file of the user's, and the process is replaced."""
    lost, right = (f"tests.check.planted_compilers:{name}" for name in ("ends_the_process", "flattens"))
    code, rows = compare(tmp_path, f"{MODULES}written_training", "--subject", lost, "--subject", right)
    row = rows["Written", lost]
    assert (code, row["answer"], row[lost]["verdict"]) == (1, "no result", "worker_died")
    assert "SIGSEGV" in row[lost]["why"]
    assert load(Path(row["case"])).verdict == "worker_died"
    assert rows["Written", right]["answer"] in ("equal", "within rounding")


@pytest.mark.worker
def test_a_test_suite_sees_a_wrong_block(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=": wrong") as failed:
        check_module(plain, pythons=[str(plant(tmp_path, "scale_dropped"))], subject="passes")
    [case] = [word for word in str(failed.value).split() if word.endswith(".case.yaml")]
    assert load(Path(case)).found is not None


@pytest.mark.worker
def test_the_smallest_block_that_is_wrong_gets_the_report(tmp_path: Path) -> None:
    config = WorkerConfig(python=str(plant(tmp_path, "softmax_turned")))
    with open_comparison([config], f"{MODULES}block", ["passes"], tmp_path) as comparison:
        wrong = save_wrong_block(comparison)
    assert wrong is not None
    assert load(wrong).note.startswith("attn, ")


@pytest.mark.worker
def test_a_campaign_begins_with_the_module_itself(tmp_path: Path) -> None:
    config = WorkerConfig(python=str(plant(tmp_path, "row_masked")))
    factory = "tests.importing.structured:row_masked"
    assert judge_modules(config, [factory], ["passes"], tmp_path / "answers", quiet=True) == 2
    rows = json.loads((tmp_path / "answers" / "module-0.json").read_text(encoding="utf-8"))
    whole = next(row for row in rows if not row["block"])
    assert (whole["answer"], whole["live"]) == ("wrong", True)
    assert load(Path(whole["case"])).found is not None


@pytest.mark.worker
def test_a_torch_without_the_factory_judges_what_repeats_the_module(tmp_path: Path) -> None:
    """The second interpreter has a defect, and does not find the module."""
    (tmp_path / "only_here.py").write_text("from tests.importing.modules import plain\n", encoding="utf-8")
    python = write_python(tmp_path, "here", PYTHONPATH=tmp_path)
    options = ("--python", python, "--python", plant(tmp_path, "scale_dropped"), "--subject", "passes")
    code, rows = compare(tmp_path, "only_here:plain", *options)
    row = rows["Plain", "passes"]
    assert (code, row["answer"], row["live"]) == (1, "new wrong", False)


def test_a_bad_module_is_refused(tmp_path: Path) -> None:
    done = run_command("fuzz.compare", "--module", f"{MODULES}raises", "--out", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][:6]) == (2, "error:")
    done = run_command("fuzz.compare", "--module", f"{MODULES}idle", "--subject", "passes", "--out", tmp_path)
    assert (done.returncode, "no block is judged" in done.stderr) == (2, True)
    done = run_command("fuzz.compare", "--module", f"{MODULES}block", "case.yaml")
    assert done.returncode == 2


@pytest.mark.worker
def test_a_torch_that_can_not_run_the_module_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        "import os\nfrom tests.importing.modules import plain as made\n\n\ndef plain():\n"
        "    if 'ATTNFUZZ_PLANT' in os.environ:\n        raise RuntimeError('no kernel')\n    return made()\n",
        encoding="utf-8",
    )
    old = write_python(tmp_path, "old", PYTHONPATH=tmp_path)
    new = write_python(tmp_path, "new", ATTNFUZZ_PLANT="", PYTHONPATH=tmp_path)
    code, rows = compare(tmp_path, "moody:plain", "--python", old, "--python", new, "--subject", "passes")
    assert (code, {row["answer"] for row in rows.values()}) == (1, {"newly refused"})
    assert "no kernel" in rows["Plain", "eager"]["new"]["why"]
