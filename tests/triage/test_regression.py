"""test_regression.py: tests of PyTorch that fail where the bug shows, pass where it does not, and name their file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpus import casefile, entry
from corpus import ledger as ledgers
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.fault import Fault
from fuzz.ask.worker_config import ROOT
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Failure, Raised, WrongValue
from fuzz.replay_result import read_recorded_result
from tests.check.test_sequences import CALLS, products
from tests.triage.conftest import OFF, RunAll
from tests.triage.test_repro import imported
from triage.report.build import shows
from triage.report.owners import find_owner
from triage.report.regression import FILE, read_failures, spell_script, write_test
from triage.report.repro import ScriptedFailure
from triage.report.shards import write_ranks

LEDGER = ledgers.load(ledgers.LEDGER)


def scripted(bug: ledgers.Bug, fixed: tuple[str, str] | None = None) -> str:
    """The test for the first example of a bug, after a change of its text."""
    path = LEDGER.examples(bug)[0]
    found, text = entry.load(path), path.read_text()
    case = entry.loads(re.sub(*fixed, text)).case if fixed else found.case
    return write_test(ScriptedFailure(case, read_recorded_result(found), bug.title), bug.cause, bug.id)


@pytest.mark.torch("==2.13.*", "has these bugs")
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("bug", "fixed"),
    [
        ("integer-mask", ("dtype: float32, (values: {kind: )normal(, seed: 2)", r"dtype: float32, \1zero_one\2")),
        ("masked-fill-of-a-view", ("masked_fill_,", "masked_fill,")),
        ("scan-under-compiled-autograd", ("settings: .*", "")),
    ],
)
def test_it_fails_under_a_torch_with_the_bug_and_passes_with_a_program_that_avoids_it(
    bug: str, fixed: tuple[str, str], tmp_path: Path, run_all: RunAll
) -> None:
    (listed,) = (one for one in LEDGER.bugs if one.id == bug)
    texts = [scripted(listed), scripted(listed, fixed)]
    assert all(imported(text) - sys.stdlib_module_names == {"torch"} for text in texts)
    for done, failing in zip(run_all(texts, tmp_path, "-k", "dynamic_False"), (1, 0), strict=True):
        assert "Ran 1 test" in done.stdout, done.stdout
        assert sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", done.stdout))) == failing, done.stdout
        assert done.returncode == failing


CASE = casefile.loads(
    """
case_format: 1
dims: {B: 2}
inputs: {x: {shape: [B], dtype: float32, values: {seed: 0}}}
ops:
  - {name: out, op: exp, args: [x]}
returns: [out]
"""
)
WRONG = SubjectResult("inductor", Verdict.WRONG_RESULT, {"eager_error": 1e-6, "scale": 2.0}, failure=OFF)


def cause(who: str = "inductor", stage: Stage = Stage.CODEGEN, part: str = "") -> CauseKey:
    return CauseKey(who, stage, part, MechanismKind.WRONG_RESULT)


@pytest.mark.parametrize(
    ("given", "file"),
    [
        (cause(stage=Stage.JOINT_PASSES, part="_sfdp_pattern_5_inference"), "test/inductor/test_fused_attention.py"),
        (cause(stage=Stage.JOINT_PASSES, part=Part.ATTENTION_PATTERNS), "test/inductor/test_fused_attention.py"),
        (cause(stage=Stage.GRAPH_PASSES, part="constant_fold"), "test/inductor/test_torchinductor.py"),
        (cause("aot", Stage.DYNAMO), "test/functorch/test_aotdispatch.py"),
        (cause("aot", Stage.DYNAMO, Part.TORCH_EXPORT), "test/export/test_export.py"),
        (cause("aot", Stage.DECOMPOSITION, "aten.lerp"), "test/test_decomp.py"),
        (cause("dynamo", Stage.DYNAMO), "test/dynamo/test_misc.py"),
        (cause("eager", Stage.OPERATION, "aten.scaled_dot_product_attention"), "test/test_transformers.py"),
    ],
)
def test_the_part_at_fault_decides_whose_test_it_is(given: CauseKey, file: str) -> None:
    assert find_owner(CASE, given).file == file


@pytest.mark.parametrize(
    ("fault", "given", "file"),
    [
        ("_inductor/decomposition.py", cause("aot", Stage.DECOMPOSITION, "aten.cat"), "inductor/test_torchinductor.py"),
        ("nn/modules/transformer.py", cause("aot", Stage.DYNAMO), "test_transformers.py"),
        ("_functorch/_aot_autograd/schemas.py", cause("inductor", Stage.CODEGEN), "functorch/test_aotdispatch.py"),
        ("_functorch/eager_transforms.py", cause("aot", Stage.DYNAMO, Part.TORCH_EXPORT), "export/test_export.py"),
        ("fx/node.py", cause("dynamo", Stage.DYNAMO), "dynamo/test_misc.py"),  # nobody's
    ],
)
def test_the_line_at_fault_decides_before_the_stage_that_shows_it(fault: str, given: CauseKey, file: str) -> None:
    assert find_owner(CASE, given, Fault(fault, 1, "f", "2.15.0", "reading")).file == f"test/{file}"


@pytest.mark.parametrize(("shard", "code"), [(", shard: 0", 1), ("", 0)])
def test_two_ranks_show_what_they_alone_get_wrong(shard: str, code: int, tmp_path: Path, run_all: RunAll) -> None:
    text = (ROOT / "corpus" / "known" / "rows-of-a-sharded-table-read-twice.case.yaml").read_text()
    case = entry.loads(text.replace(", shard: 0", shard)).case
    bug = ScriptedFailure(case, SubjectResult("sharded", Verdict.RUNTIME_ERROR, failure=Raised("AssertionError", "")))
    cause = CauseKey("sharded", Stage.SHARDING, "aten.embedding", MechanismKind.RUNNING_RAISES)
    for done in run_all([write_ranks(bug, *spell_script(bug)), write_test(bug, cause)], tmp_path):
        assert done.returncode == code, done.stdout
        assert ("AssertionError" in done.stdout) is bool(code)


def test_a_person_s_script_of_eager_becomes_the_test() -> None:
    eager = "import torch\nx = torch.ones(2)\nassert x.sum() == 3"
    text = write_test(ScriptedFailure(CASE, WRONG), cause(), "b", eager=eager)
    assert "        assert x.sum() == 3\n" in text and "torch.compile" not in text
    compile(text, FILE, "exec")


@pytest.mark.parametrize(
    ("errors", "failing", "ways"),
    [
        ({False: "KeyError: 1", True: "KeyError: 1"}, {False, True}, (False, True)),
        ({False: "IndexError: 2", True: "KeyError: 1"}, {True}, (True,)),
        ({True: "KeyError: 1"}, {True}, (False, True)),
        ({True: "its process ended"}, {True}, (False, True)),  # nothing is known of its error
    ],
)
def test_a_way_to_compile_that_fails_by_another_error_is_left_out(
    errors: dict[bool, str], failing: set[bool], ways: tuple[bool, ...]
) -> None:
    log = "".join(f"{'=' * 70}\nERROR: test_b_dynamic_{way} (__main__.T)\n{said}\n" for way, said in errors.items())
    assert read_failures(log, "KeyError") == (tuple(f"test_b_dynamic_{way}" for way in sorted(failing)), ways)
    text = write_test(ScriptedFailure(CASE, WRONG), cause(), "b", dynamic=ways)
    assert f'@parametrize("dynamic", {[*ways]})' in text


def test_the_tolerance_is_that_of_repro() -> None:
    text = write_test(ScriptedFailure(CASE, WRONG), cause())
    assert float(re.findall(r"atol=([\d.e+-]+)", text)[0]) == pytest.approx(10 * 1e-6 + 8 * 2.0**-23 * 2.0, rel=0.1)


def test_calls_after_the_failure_are_left_out() -> None:
    assert isinstance(OFF, WrongValue)
    case = products(calls=CALLS)
    assert write_test(ScriptedFailure(case, WRONG), cause()).count("yield") == 0


@pytest.mark.parametrize("verdict", [Verdict.OUT_OF_BOUNDS, Verdict.NONDETERMINISTIC])
def test_a_failure_that_no_plain_run_shows_has_no_test(verdict: Verdict) -> None:
    assert not write_test(ScriptedFailure(CASE, SubjectResult("inductor", verdict)), cause())


@pytest.mark.parametrize(
    ("verdict", "failure", "log", "counts"),
    [
        (Verdict.WRONG_RESULT, OFF, "AssertionError: Tensor-likes are not close!", True),
        (Verdict.WRONG_RESULT, OFF, "NameError: name 'Float64' is not defined", False),
        (Verdict.COMPILE_ERROR, Raised("KeyError", "buf7"), "BackendCompilerFailed: KeyError: buf7", True),
        (Verdict.COMPILE_ERROR, Raised("KeyError", "buf7"), "NameError: name 'Module' is not defined", False),
    ],
)
def test_a_script_that_fails_by_a_fault_of_its_own_shows_nothing(
    verdict: Verdict, failure: Failure, log: str, counts: bool
) -> None:
    run = subprocess.CompletedProcess((), 1, "", log)
    assert shows(run, SubjectResult("inductor", verdict, failure=failure)) is counts
