"""Reports about attention functions, for their authors: planted faults, as somebody would meet them."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile, entry
from corpus.entry import Entry, Expectation
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, FormDiffers, Value
from generators.program.case import Case
from tests.command import ROOT
from tests.triage.conftest import NUMBERS, OFF, SOFTMAX_OVER_QUERIES, RunAll
from tests.triage.test_report import report
from tests.triage.test_repro import imported
from triage.rendering import render
from triage.report import conditions as explaining
from triage.report.build import build
from triage.report.conditions import find_conditions
from triage.report.regression import spell_script
from triage.report.repro import ScriptedFailure, spell_kernel, write_script

OF_MEMORY = {Verdict.OUT_OF_MEMORY, Verdict.OUT_OF_BOUNDS}
WRONG = SubjectResult("inductor", Verdict.WRONG_RESULT, numbers=NUMBERS, failure=OFF)
PLANTED = "tests.check.planted_attention"
ATTENTION = """
case_format: 1
dims: {H: 2, S: 7, D: 8}
inputs:
  x: {shape: [1, H, S, D], dtype: float32, values: {seed: 0}}
  w: {shape: [1, H, S, D], dtype: float32, values: {seed: 1}}
  z: {shape: [1, H, S, D], dtype: float32, values: {seed: 2}}
ops:
  - {name: kt, op: transpose, args: [w], dim0: -2, dim1: -1}
  - {name: products, op: matmul, args: [x, kt]}
  - {name: scores, op: mul, args: [products], other: 0.25}
  - {name: weights, op: softmax, args: [scores], dim: -1}
  - {name: out, op: matmul, args: [weights, z]}
returns: [out]
mode: training
contracts:
  - {q: x, k: w, v: z, output: out, scale: 0.25}
"""


@pytest.fixture
def attention() -> Case:
    return casefile.loads(ATTENTION)


def try_sizes(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """Of each dimension only these sizes are tried."""
    resize = explaining._resize
    monkeypatch.setattr(
        explaining,
        "_resize",
        lambda case, new: resize(case, new) if {*new.values()} - {*case.sizes.values()} <= {*sizes} else None,
    )


def found(verdict: Verdict) -> SubjectResult:
    return SubjectResult("", verdict)


def written(case: Case, subject: str, result: SubjectResult) -> str:
    return write_script(ScriptedFailure(case=case, result=replace(result, subject=subject), title="a title"))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "verdict", [v for v in Verdict if v.is_finding and v not in {Verdict.EAGER_SUSPECT, *OF_MEMORY}]
)
def test_repro_is_one_short_file_that_needs_torch_and_the_kernel_alone(
    attention: Case, verdict: Verdict, mode: str
) -> None:
    case = replace(attention, mode=mode)
    for subject, needs in (("triton", {"kernels"}), ("mine.kernels:attend", {"mine"}), ("sdpa_flash", set())):
        text = written(case, subject, found(verdict))
        assert imported(text) - set(sys.stdlib_module_names) == {"torch", *needs}
        assert len(text.splitlines()) < 160


def test_repro_reads_as_the_module_and_a_second_one_with_the_kernel(attention: Case) -> None:
    text = written(attention, "triton", found(Verdict.WRONG_GRADIENT))
    places = [
        text.index(part)
        for part in (
            '"TRITON_INTERPRET", "1"',
            "from kernels.attention import attention as attend",
            "torch.set_num_threads(1)",
            "class Module(nn.Module):",
            "kt = w.transpose(-2, -1)",
            "def inputs():",
            "class WithKernel(Module):",
            "out = attend(x, w, z, scale=0.25)",
        )
    ]
    assert places == sorted(places)


def test_a_finite_fill_that_is_as_good_as_none_is_not_handed_to_the_kernel(attention: Case) -> None:
    text = ATTENTION.replace(
        "ops:", "  m: {shape: [S, S], dtype: bool, values: {kind: random, seed: 3, scale: 0.5}}\nops:"
    )
    text = text.replace(
        "  - {name: weights, op: softmax, args: [scores]",
        "  - {name: kept, op: masked_fill, args: [scores, m], value: -10000.0}\n"
        "  - {name: weights, op: softmax, args: [kept]",
    )
    text = text.replace("scale: 0.25}\n", "scale: 0.25, mask: m, mask_means: drop, fill: -10000.0}\n")
    bug = ScriptedFailure(casefile.loads(text), SubjectResult("triton", Verdict.WRONG_RESULT))
    assert "out = attend(x, w, z, scale=0.25, mask=~m)\n" in spell_kernel(bug)


REPROS = [
    ("right", Verdict.WRONG_GRADIENT, 0, "grad of x"),
    ("first_rows", Verdict.WRONG_GRADIENT, 1, "grad of x"),
    ("without_last_key", Verdict.WRONG_RESULT, 1, "output 0"),
    ("unwritten", Verdict.NONFINITE, 1, "kernel inf"),
    ("crashing", Verdict.RUNTIME_ERROR, 1, "no such tile"),
]


@pytest.mark.worker
def test_repro_exits_with_1_where_the_function_is_wrong_and_with_0_where_it_is_right(
    tmp_path: Path, attention: Case, run_all: RunAll
) -> None:
    def write(function: str, verdict: Verdict) -> str:
        case = attention if function in ("right", "first_rows") else replace(attention, mode="inference")
        return written(case, f"{PLANTED}:{function}", found(verdict))

    texts = [write(function, verdict) for function, verdict, *_ in REPROS]
    for done, (function, _, code, says) in zip(run_all(texts, tmp_path), REPROS, strict=True):
        assert done.returncode == code, (function, done.stdout)
        assert says in done.stdout, function


@pytest.mark.worker
@pytest.mark.parametrize("subject", [f"{PLANTED}:right", "triton"])
def test_repro_exits_with_125_where_it_cannot_run(tmp_path: Path, attention: Case, subject: str) -> None:
    (tmp_path / "repro.py").write_text(written(attention, subject, found(Verdict.NONFINITE)))
    done = subprocess.run(
        [sys.executable, "repro.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert "ModuleNotFoundError(" in done.stderr


def test_a_right_function_in_low_precision_is_right(tmp_path: Path, run_all: RunAll) -> None:
    case = casefile.loads(ATTENTION.replace("float32", "bfloat16"))
    (done,) = run_all([written(case, f"{PLANTED}:right", found(Verdict.WRONG_GRADIENT))], tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_sizes_that_fail_are_told_with_the_nearest_that_pass(attention: Case) -> None:
    result = SubjectResult("triton", Verdict.WRONG_GRADIENT)

    def judge(case: Case) -> SubjectResult:
        return replace(result, verdict=Verdict.NONFINITE if case.sizes["S"] % 64 else Verdict.ROUNDING)

    case = replace(attention, dims=(("H", 2), ("S", 65), ("D", 8)))
    searched = find_conditions(case, result, judge, sizes_only=True)
    assert str(searched[0]) == "S % 64 != 0 (fails with 65, 66, 32, 16; passes with 64, 128)"


def test_another_head_dim_changes_the_scale_that_follows_from_it() -> None:
    text = (
        ATTENTION.partition("ops:")[0]
        + """
ops:
  - {name: out, op: sdpa, args: [x, w, z]}
returns: [out]
contracts:
  - {q: x, k: w, v: z, output: out, scale: 0.3535533905932738}
"""
    )
    case = casefile.loads(text)
    other = explaining._resize(case, {**case.sizes, "D": 4})
    assert other is not None
    assert other.contracts[0].scale == 0.5


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_a_wrong_gradient_becomes_a_report_with_its_place_and_its_boundary(
    tmp_path: Path, attention: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 1, 2)
    subject, out = f"{PLANTED}:first_rows", tmp_path / "out"
    file = entry.save(Entry(attention, expect=Expectation("pass", subject=subject)), tmp_path)
    refused = report(file, "--out", out)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"allow it with --subject {subject}" in refused.stderr
    done = report(file, "--out", out, "--subject", subject)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"attention kernel {subject}: wrong gradient dq\n")
    text = (out / "report.md").read_text()
    assert "dq: head 1 of 2, query row 0-4 of 7 (40 elements)." in text
    assert f"from {PLANTED} import first_rows as attend\n" in text
    assert "out = attend(x, w, z, scale=0.25)\n" in text
    assert "H = 2 (fails with 2; passes with 1)" in text
    assert re.search(r"\| F.scaled_dot_product_attention under sdpa_kernel\(MATH\) \| (ok|rounding) \|", text)
    assert "torch.compile" not in text
    assert len(text.splitlines()) < 120
    assert "exits with 1 if the bug shows (here: 1)" in text


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_a_report_of_a_write_out_of_bounds_names_the_command_that_shows_it(
    tmp_path: Path, attention: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 1)
    subject, out = f"{PLANTED}:beside_dv", tmp_path / "out"
    done = report(entry.save(Entry(attention), tmp_path), "--out", out, "--subject", subject)
    assert done.returncode == 0, done.stderr
    text = (out / "report.md").read_text()
    assert text.startswith(f"# attention kernel {subject}: out of bounds")
    assert f"\n    python -m fuzz.replay finding.case.yaml --subject {subject}\n" in text
    assert not (out / "repro.py").exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_what_a_plain_run_can_not_show_is_replayed_from_a_case_file(
    tmp_path: Path, attention: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 1)
    monkeypatch.setattr("triage.report.repro.write_script", lambda _: "")
    subject = f"{PLANTED}:first_rows"
    made = build(Entry(attention), WorkerConfig(device="cpu", timeout=60), tmp_path, subject=subject)
    assert f"\n    python -m fuzz.replay finding.case.yaml --subject {subject}\n" in render("report.md.j2", report=made)
    assert entry.load(tmp_path / "finding.case.yaml").case == attention and not (tmp_path / "repro.py").exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_a_right_function_gets_no_report(tmp_path: Path, attention: Case) -> None:
    file = entry.save(Entry(attention), tmp_path)
    done = report(file, "--out", tmp_path / "out", "--subject", f"{PLANTED}:right")
    assert done.returncode == 0, done.stderr
    assert "not a bug to report: " in done.stdout
    assert not (tmp_path / "out" / "repro.py").exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("inductor", "error: subject 'inductor' is not an attention function"),
        (
            "tests.check.planted:wrong_gradient",
            "error: tests.check.planted:wrong_gradient is neither an attention function",
        ),
    ],
)
def test_what_is_no_attention_function_is_an_error(tmp_path: Path, attention: Case, subject: str, message: str) -> None:
    file = entry.save(Entry(attention), tmp_path)
    done = report(file, "--out", tmp_path / "out", "--subject", subject)
    *progress, error = done.stderr.splitlines()
    assert (done.returncode, [line for line in progress if not line.startswith("torch ")]) == (2, [])
    assert error.startswith(message)


@pytest.mark.triton_interpreter
@pytest.mark.usefixtures("one_worker", "no_environment")
def test_statistics_stored_without_a_mask_are_told_with_the_sizes_that_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 64, 66, 63, 128)
    text = ATTENTION.replace("{H: 2, S: 7, D: 8}", "{S: 65}").replace("[1, H, S, D]", "[1, 2, S, 16]")
    out = tmp_path / "out"
    out.mkdir()
    subject = "benchmarks.defects:statistics_without_mask"
    made = build(Entry(casefile.loads(text)), WorkerConfig(device="cpu", timeout=60), out, subject=subject)
    assert made["title"].endswith("wrong gradient dq")
    assert "head 1 of 2, query row 0-62 of 65" in made["where"]
    assert "passes with 64, 128" in "".join(map(str, made["conditions"]))


def test_repro_shows_a_row_that_keeps_no_key_and_is_not_0(tmp_path: Path, run_all: RunAll) -> None:
    text = ATTENTION.replace("ops:", "  m: {shape: [S, S], dtype: bool, values: {kind: zeros, seed: 3}}\nops:")
    text = text.replace(
        "  - {name: weights, op: softmax, args: [scores]",
        "  - {name: none, op: logical_not, args: [m]}\n"
        "  - {name: kept, op: masked_fill, args: [scores, none]}\n"
        "  - {name: weights, op: softmax, args: [kept]",
    )
    text = text.replace("scale: 0.25}\n", "scale: 0.25, mask: m}\n").replace("mode: training\n", "")
    result = SubjectResult("", Verdict.WRONG_RESULT, failure=EmptyRowsNotZero(Value.of_result("out"), 14, (0, 0, 0, 0)))
    names = (f"{PLANTED}:right", f"{PLANTED}:mean_of_hidden")
    done = run_all([written(casefile.loads(text), name, result) for name in names], tmp_path)
    assert [one.returncode for one in done] == [0, 1]
    assert "eager 0, kernel 0.94; wrong" in done[1].stdout


def test_the_code_in_a_report_runs_and_passes_where_nothing_is_wrong(
    tmp_path: Path, attention: Case, run_all: RunAll
) -> None:
    case = replace(attention, mode="inference")
    results = (replace(WRONG, subject="sdpa_math"), SubjectResult("sdpa_math", Verdict.RUNTIME_ERROR))
    texts = ["\n\n".join(spell_script(ScriptedFailure(case, result))) for result in results]
    assert all("module = WithKernel()" in text for text in texts)
    done = run_all(texts, tmp_path)
    assert [one.returncode for one in done] == [0, 0], [one.stdout for one in done]


@pytest.mark.compiles
@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
def test_the_code_in_a_report_fails_where_compiled_code_differs_from_eager(
    tmp_path: Path, attention: Case, run_all: RunAll
) -> None:
    cases = (replace(attention, mode="inference"), casefile.loads(SOFTMAX_OVER_QUERIES))
    done = run_all(["\n".join(spell_script(ScriptedFailure(case, WRONG))) for case in cases], tmp_path)
    assert [one.returncode for one in done] == [0, 1]
    assert "Tensor-likes are not close" in done[1].stdout


def test_no_code_in_a_report_claims_what_only_a_worker_shows(attention: Case) -> None:
    by_a_kernel = replace(WRONG, subject=f"{PLANTED}:right")
    assert spell_script(ScriptedFailure(attention, by_a_kernel)) == ("", "")


@pytest.mark.compiles
@pytest.mark.torch("<2.16", "an output that is an input where eager's is none")
def test_repro_shows_that_an_output_is_memory_of_an_input(tmp_path: Path, run_all: RunAll) -> None:
    case = entry.load(ROOT / "corpus" / "known" / "clone-of-written-input.case.yaml").case
    failure = FormDiffers("memory", value=Value("output", 0), actual_owner=Value("input", 0))
    (done,) = run_all([written(case, "inductor", SubjectResult("", Verdict.METADATA, failure=failure))], tmp_path)
    assert done.returncode == 1
    assert re.search(r"output 0: memory: eager its own, inductor that of x\n", done.stdout)
