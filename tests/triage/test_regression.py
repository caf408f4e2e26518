"""The script of a bug: exit code 1 where the bug shows, 0 where it does not, and 125 where it can't tell."""

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus import casefile, entry
from corpus import ledger as ledgers
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.fault import FaultyLine
from fuzz.ask.worker_config import ROOT
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import (
    DifferentElements,
    Failure,
    FaultyOperation,
    FormDiffers,
    Nondeterministic,
    NotFinite,
    Raised,
    StateChange,
    StateChanged,
    Value,
    WrongValue,
)
from fuzz.replay_result import read_recorded_result
from generators.program.case import Case, Earlier, LaterCall
from generators.program.emit import source
from generators.program.type_check import check as check_case
from generators.sampling.sample import sample
from tests.check.test_sequences import CALLS, products
from tests.command import run_python
from tests.programs import program
from tests.triage.conftest import RunAll
from triage.report.failing_run import FailingRun, spell_plain
from triage.report.owners import find_owner
from triage.report.regression import CANT_RUN, FILE, RegressionScript, write_case

LEDGER = ledgers.load(ledgers.LEDGER)
OPTION = "torch._inductor.config.deterministic"


def case_of(op: str, mode: str = "inference") -> Case:
    return casefile.loads(program("B: 2, D: 3", {"x": "B, D"}, f"out = {op}", mode=mode))


EXP, WRITES = case_of("exp x"), case_of("mul_ x, other: 2.0")
ARGMAX = case_of("argmax x, dim: 0")
OUT, GRADIENT, WRITTEN = Value("output", 0), Value("input", 0, is_gradient=True), Value("input", 0, is_written=True)


def off(value: Value = OUT, error: float = 0.5) -> WrongValue:
    return WrongValue(value, (0, 0), error=error, ratio=9e4, limit=32.0)


def script(
    failure: Failure | None, case: Case = EXP, verdict: Verdict = Verdict.WRONG_RESULT, subject: str = "inductor"
) -> RegressionScript:
    check_case(case)
    return write_case(FailingRun(case, SubjectResult(subject, verdict, failure=failure), 'a "title" with \\ in it'))


def imported(text: str) -> set[str]:
    """The packages that a script imports, of others than Python."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [
        name
        for node in nodes
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    ]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


AS_IT_IS = "lambda module, **_: module"
ON_RESULT = "lambda module, **_: lambda *given: {}(module(*given))"
HALF_MORE = ON_RESULT.format("(lambda out: out * 1.5)")
OF_FIRST_SIZE = """lambda module, sizes=[], **_: lambda x: (
    sizes.append(x.shape[1]), module(torch.cat([x[:, : sizes[0]], 0 * x[:, sizes[0] :]], 1)))[1]"""
WITHOUT_WRITES = "lambda module, **_: lambda x: module(x.clone())"
OF_SECOND = "lambda module, seen=[], **_: (seen.append(1), lambda x: module(x) + (len(seen) > {}))[1]"
BEFORE, STATE = (Earlier(case_of("sin x")),), StateChanged((StateChange(OPTION, "True", "its default"),))
SETS = "lambda module, **_: lambda x: (setattr(torch._inductor.config, 'deterministic', False), module(x))[1]"
ADDED = ON_RESULT.format("(lambda out: out + 1)")
SET = replace(EXP, settings=(("deterministic", True),))
EXACT, TRAINED = replace(off(), eager_error=0.0), case_of("exp x", "training")
SUSPECT = FaultyOperation("aten.exp", 0.0, 1.0, OUT, 0.5)
COUNTED = "lambda module, n=[], **_: lambda x: (n.append(1), module(x) + len(n))[1]"
PLANTED = [
    (
        script(off()),
        {
            AS_IT_IS: 0,
            ON_RESULT.format("(lambda out: out * (1 + 1e-7))"): 0,
            HALF_MORE: 1,
            ON_RESULT.format("(lambda out: out / 0 * 0)"): 1,  # NaN
            "lambda module, **_: 1 / 0": CANT_RUN,
            OF_SECOND.format(1): 0,
        },
    ),
    (script(EXACT), {HALF_MORE: 1, AS_IT_IS: 0}),
    (script(off(GRADIENT), TRAINED), {ON_RESULT.format("(lambda out: out * 3 - 2 * out.detach())"): 1, AS_IT_IS: 0}),
    # Without the keyword `dynamic`, by which numbers of later calls would be constants.
    (
        script(off(Value("output", 0, call=3)), products(calls=CALLS)),
        {"lambda module, **words: module if not words else 1 / 0": 0},
    ),
    (script(off(Value("output", 0, call=3), 0.1), products(calls=CALLS)), {OF_FIRST_SIZE: 1}),
    (script(off(WRITTEN), WRITES), {WITHOUT_WRITES: 1, AS_IT_IS: 0}),
    (script(FormDiffers("mutation", value=WRITTEN), WRITES), {WITHOUT_WRITES: 1}),
    (script(NotFinite(OUT, 1, (0, 0))), {ON_RESULT.format("(lambda out: out / 0)"): 1, ADDED: 0}),
    (
        script(FormDiffers("strides", value=OUT)),
        {ON_RESULT.format("(lambda out: out.t().contiguous().t())"): 1, ADDED: 0},
    ),
    (script(FormDiffers("dtype", value=OUT)), {ON_RESULT.format("torch.Tensor.double"): 1}),
    (script(FormDiffers("structure")), {ON_RESULT.format("(lambda out: (out,))"): 1}),
    (script(DifferentElements(OUT, 1, 6), ARGMAX), {ADDED: 1, AS_IT_IS: 0}),
    (
        script(Raised("KeyError"), EXP, Verdict.COMPILE_ERROR),
        {
            "lambda module, **_: {}[1]": 1,
            AS_IT_IS: 0,
            "torch.nn.Module.__call__ = None": CANT_RUN,  # eager raises too
        },
    ),
    (script(STATE, SET, Verdict.STATE_CHANGED, "inductor_options"), {SETS: 1, AS_IT_IS: 0}),
    (script(Nondeterministic(OUT), verdict=Verdict.NONDETERMINISTIC), {OF_SECOND.format(9): 0}),
    (script(Nondeterministic(OUT)), {COUNTED: 1}),
    (script(off(), replace(EXP, before=BEFORE)), {OF_SECOND.format(1): 1}),
    (script(off(), EXP, subject="inductor_warm"), {OF_SECOND.format(1): 1, AS_IT_IS: 0}),
    (script(SUSPECT, verdict=Verdict.EAGER_SUSPECT), {AS_IT_IS: 0, "EAGER": 1}),
]
"""Scripts, and their exit codes by the compiler that stands in for torch's."""
EAGER_IS_WRONG = "exp = torch.Tensor.exp; torch.Tensor.exp = lambda x: exp(x) + (x.dtype == torch.float32)"


def plant(given: RegressionScript, compiler: str) -> str:
    """The script, after lines that make a mistake of torch."""
    change = compiler if " = " in compiler else f"torch.compile = {compiler}"
    return f"import torch\n{EAGER_IS_WRONG if compiler == 'EAGER' else change}\n{given.write()}"


def test_the_exit_code_says_whether_the_bug_shows(tmp_path: Path, run_all: RunAll) -> None:
    planted = [(given, *row) for given, rows in PLANTED for row in rows.items()]
    texts = [plant(given, compiler) for given, compiler, _ in planted]
    for done, text, (given, compiler, code) in zip(run_all(texts, tmp_path), texts, planted, strict=True):
        assert given.is_possible and imported(text) == {"torch"}
        assert done.returncode == code, (given.bug.result, compiler, done.stdout)


def test_a_wrong_value_is_shown_beside_eager_s_and_float64_s(tmp_path: Path, run_all: RunAll) -> None:
    (done,) = run_all([plant(script(off()), HALF_MORE)], tmp_path)
    exact, eager, compiled = map(float, re.findall(r"(?:up to|eager|compiled) ([\d.e+-]+)", done.stdout)[:3])
    assert eager < 1e-6 and compiled == pytest.approx(exact / 2, rel=0.1)


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
    path = LEDGER.examples(listed)[0]
    result, text = read_recorded_result(entry.load(path)), path.read_text()
    cases = [entry.loads(changed).case for changed in (text, re.sub(*fixed, text))]
    texts = [write_case(FailingRun(case, result)).write(listed.cause, name=bug) for case in cases]
    assert [done.returncode for done in run_all(texts, tmp_path)] == [1, 0]


PACKAGE = """import torch, torch._inductor, torch.export
torch._inductor.aoti_compile_and_package = lambda program: program
torch._inductor.aoti_load_package = lambda program: program.module()"""
NEGATED = """run = torch.export.ExportedProgram.module
torch.export.ExportedProgram.module = lambda program: lambda *given: -run(program)(*given)
"""


@pytest.mark.compiles
@pytest.mark.parametrize("subject", ["export", "aot_inductor"])
def test_what_is_exported_runs_as_the_changes_before_its_first_call_leave_it(
    subject: str, tmp_path: Path, run_all: RunAll
) -> None:
    scripts = [script(off(), case, subject=subject).write() for case in (EXP, replace(EXP, calls=(LaterCall(),)))]
    texts = [f"{PACKAGE}\n{planted}{text}" for planted in ("", NEGATED) for text in scripts]
    assert [done.returncode for done in run_all(texts, tmp_path)] == [0, 0, 1, 1]


@pytest.mark.samples
def test_it_has_the_text_that_ran() -> None:
    for index in range(30):
        drawn = replace(sample(7, index), calls=())  # the first fails: later calls are left out
        text = script(off(), drawn).write()
        assert source(drawn).strip().partition("\n\n")[2] in text and imported(text) == {"torch"}
        compile(text, FILE, "exec")


def test_it_says_in_a_line_where_torch_can_not_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is broken')")
    (tmp_path / FILE).write_text(script(off()).write())
    done = run_python(FILE, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (CANT_RUN, "", 1)
    assert "OSError('libtorch.so is broken')" in done.stderr


RUNNING_SUM = program("S: 3", {"x": "S", "decay": "S"}, "out = decayed_sum x decay, form: scan")


def test_float64_runs_a_loop_in_place_of_a_scan() -> None:
    import torch

    case, names = casefile.loads(RUNNING_SUM), dict[str, Any]()
    exec(f"{source(case)}\n\n{spell_plain(case)}", names)
    given = names["inputs"]()
    torch.testing.assert_close(names["Module"]()(*given), names["Plain"]()(*given))
    assert spell_plain(case) in script(off(), case).program


@pytest.mark.parametrize(
    ("given", "is_possible"),
    [
        (script(off(), replace(EXP, settings=(("poison", "nan"),)), subject="inductor_options"), False),
        (script(off(), replace(EXP, settings=(("cpp.threads", 2),)), subject="inductor_options"), True),
        (script(off(), verdict=Verdict.OUT_OF_BOUNDS), False),
        (script(None), False),
        (
            script(StateChanged((StateChange("torch's number of threads", "1", "2"),)), verdict=Verdict.STATE_CHANGED),
            False,
        ),
    ],
)
def test_what_only_a_worker_shows_has_no_script(given: RegressionScript, is_possible: bool) -> None:
    assert given.is_possible is is_possible


def test_the_bound_is_half_of_the_error_that_was_met() -> None:
    text = script(off(error=0.5)).write()
    assert float(re.findall(r"atol=([\d.e+-]+)", text)[0]) == 0.25


def test_calls_after_the_failure_are_left_out() -> None:
    assert script(off(), products(calls=CALLS)).write().count("yield") == 0


@pytest.mark.parametrize(("shard", "code"), [(", shard: 0", 1), ("", 0)])
def test_two_ranks_show_what_they_alone_get_wrong(shard: str, code: int, tmp_path: Path) -> None:
    text = (ROOT / "corpus" / "known" / "rows-of-a-sharded-table-read-twice.case.yaml").read_text()
    case = entry.loads(text.replace(", shard: 0", shard)).case
    given = script(Raised("AssertionError", ""), case, Verdict.RUNTIME_ERROR, "sharded")
    (tmp_path / FILE).write_text(given.write(cause("sharded", Stage.SHARDING, "aten.embedding")))
    done = run_python(FILE, cwd=tmp_path)
    assert done.returncode == code, done.stderr


def cause(who: str = "inductor", stage: Stage = Stage.CODEGEN, part: str = "") -> CauseKey:
    return CauseKey(who, stage, part, MechanismKind.WRONG_RESULT)


EXPORT = Part.TORCH_EXPORT


@pytest.mark.parametrize(
    ("given", "fault", "file"),
    [
        (cause(stage=Stage.JOINT_PASSES, part="_sfdp_pattern_5_inference"), "", "inductor/test_fused_attention.py"),
        (cause(stage=Stage.JOINT_PASSES, part=Part.ATTENTION_PATTERNS), "", "inductor/test_fused_attention.py"),
        (cause(stage=Stage.GRAPH_PASSES, part="constant_fold"), "", "inductor/test_torchinductor.py"),
        (cause("aot", Stage.DYNAMO), "", "functorch/test_aotdispatch.py"),
        (cause("aot", Stage.DYNAMO, EXPORT), "", "export/test_export.py"),
        (cause("aot", Stage.DECOMPOSITION, "aten.lerp"), "", "test_decomp.py"),
        (cause("dynamo", Stage.DYNAMO), "", "dynamo/test_misc.py"),
        (cause("eager", Stage.OPERATION, "aten.scaled_dot_product_attention"), "", "test_transformers.py"),
        # The line at fault decides before the stage that shows it, unless it is nobody's.
        (cause("aot", Stage.DECOMPOSITION, "aten.cat"), "_inductor/decomposition.py", "inductor/test_torchinductor.py"),
        (cause("aot", Stage.DYNAMO), "nn/modules/transformer.py", "test_transformers.py"),
        (cause(), "_functorch/_aot_autograd/schemas.py", "functorch/test_aotdispatch.py"),
        (cause("aot", Stage.DYNAMO, EXPORT), "_functorch/eager_transforms.py", "export/test_export.py"),
        (cause("dynamo", Stage.DYNAMO), "fx/node.py", "dynamo/test_misc.py"),
    ],
)
def test_the_part_or_line_at_fault_decides_whose_test_it_is(given: CauseKey, fault: str, file: str) -> None:
    owner = find_owner(EXP, given, FaultyLine(fault, 1, "f", "2.15.0", "reading") if fault else None)
    assert owner is not None and owner.file == f"test/{file}"
