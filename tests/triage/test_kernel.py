"""Reports about attention functions, for their authors: planted faults, as somebody would meet them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile, entry
from corpus.entry import Entry, Expectation
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import (
    EmptyRowsNotZero,
    Failure,
    FormDiffers,
    Nondeterministic,
    NotFinite,
    Raised,
    Value,
    WrongValue,
)
from generators.program.case import Case
from tests.command import ROOT, run_python
from tests.programs import program
from tests.triage.conftest import OFF, RunAll
from tests.triage.test_regression import imported
from tests.triage.test_report import report
from triage.rendering import render
from triage.report import conditions as explaining
from triage.report.build import build
from triage.report.conditions import find_conditions
from triage.report.failing_run import FailingRun, spell_kernel
from triage.report.regression import FILE, RegressionScript, write_case

OUT = Value.of_result("out")
OF_Q = WrongValue(Value.of_result("dq"), (0, 0, 0, 0), error=0.1, ratio=9e3, limit=12.0)
PLANTED = "tests.check.planted_attention"


def write_attention(
    *masking: str,
    mask: str = "",
    contract: str = "",
    dims: str = "H: 2, S: 7, D: 8",
    shape: str = "1, H, S, D",
    mode: str = "training",
) -> str:
    """Attention of x, w and z, with operations that mask `scores` as `kept`."""
    return program(
        dims,
        dict.fromkeys("xwz", shape) | ({"m": mask} if mask else {}),
        "kt = transpose w, dim0: -2, dim1: -1",
        "products = matmul x kt",
        "scores = mul products, other: 0.25",
        *masking,
        f"weights = softmax {'kept' if masking else 'scores'}, dim: -1",
        "out = matmul weights z",
        mode=mode,
        contracts=f"[{{q: x, k: w, v: z, output: out, scale: 0.25{contract}}}]",
    )


ATTENTION = write_attention()


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


def written(case: Case, subject: str, result: SubjectResult) -> str:
    return write_case(FailingRun(case=case, result=replace(result, subject=subject), title="a title")).write()


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("failure", [OFF, NotFinite(OUT, 1, (0, 0)), Nondeterministic(OUT), Raised("KeyError")])
def test_the_script_needs_torch_and_the_kernel_alone(attention: Case, failure: Failure, mode: str) -> None:
    case, verdict = replace(attention, mode=mode), Verdict.NONFINITE if failure is not OFF else Verdict.WRONG_RESULT
    for subject, needs in (("triton", {"kernels"}), ("mine.kernels:attend", {"mine"}), ("sdpa_flash", set())):
        assert imported(written(case, subject, SubjectResult("", verdict, failure=failure))) == {"torch", *needs}


def test_the_script_reads_as_the_module_and_a_second_one_with_the_kernel(attention: Case) -> None:
    text = written(attention, "triton", SubjectResult("", Verdict.WRONG_GRADIENT, failure=OF_Q))
    places = [
        text.index(part)
        for part in (
            '"TRITON_INTERPRET", "1"',
            "from kernels.attention import attention as attend",
            "class Module(nn.Module):",
            "kt = w.transpose(-2, -1)",
            "def inputs():",
            "class WithKernel(Module):",
            "out = attend(x, w, z, scale=0.25)",
        )
    ]
    assert places == sorted(places)


def test_a_finite_fill_that_is_as_good_as_none_is_not_handed_to_the_kernel(attention: Case) -> None:
    text = write_attention(
        "kept = masked_fill scores m, value: -10000.0",
        mask="S, S; dtype: bool, values: {kind: random, seed: 3, scale: 0.5}",
        contract=", mask: m, mask_means: drop, fill: -10000.0",
    )
    bug = FailingRun(casefile.loads(text), SubjectResult("triton", Verdict.WRONG_RESULT))
    assert "out = attend(x, w, z, scale=0.25, mask=~m)\n" in spell_kernel(bug)


RUNS = [
    ("right", Verdict.WRONG_GRADIENT, OF_Q, 0),
    ("first_rows", Verdict.WRONG_GRADIENT, OF_Q, 1),
    ("without_last_key", Verdict.WRONG_RESULT, WrongValue(OUT, (0, 0, 0, 0), 0.5, 9e4, 12.0), 1),
    ("unwritten", Verdict.NONFINITE, NotFinite(OUT, 1, (0, 0, 0, 0)), 1),
    ("crashing", Verdict.RUNTIME_ERROR, Raised("RuntimeError", "no such tile"), 1),
]


@pytest.mark.worker
def test_the_script_exits_with_1_where_the_function_is_wrong_and_with_0_where_it_is_right(
    tmp_path: Path, attention: Case, run_all: RunAll
) -> None:
    def write(function: str, verdict: Verdict, failure: Failure) -> str:
        case = attention if failure is OF_Q else replace(attention, mode="inference")
        return written(case, f"{PLANTED}:{function}", SubjectResult("", verdict, failure=failure))

    texts = [write(function, verdict, failure) for function, verdict, failure, _ in RUNS]
    for done, (function, *_, code) in zip(run_all(texts, tmp_path), RUNS, strict=True):
        assert done.returncode == code, (function, done.stdout)


@pytest.mark.worker
@pytest.mark.parametrize("subject", [f"{PLANTED}:right", "triton"])
def test_the_script_exits_with_125_where_it_cannot_run(tmp_path: Path, attention: Case, subject: str) -> None:
    (tmp_path / FILE).write_text(written(attention, subject, SubjectResult("", Verdict.NONFINITE, failure=OF_Q)))
    done = run_python(FILE, cwd=tmp_path, PYTHONPATH="")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert "ModuleNotFoundError(" in done.stderr


def test_a_right_function_in_low_precision_is_right(tmp_path: Path, run_all: RunAll) -> None:
    case = casefile.loads(ATTENTION.replace("float32", "bfloat16"))
    (done,) = run_all(
        [written(case, f"{PLANTED}:right", SubjectResult("", Verdict.WRONG_GRADIENT, failure=OF_Q))], tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_the_sizes_that_fail_are_told_with_the_nearest_that_pass(attention: Case) -> None:
    result = SubjectResult("triton", Verdict.WRONG_GRADIENT)

    def judge(case: Case) -> SubjectResult:
        return replace(result, verdict=Verdict.NONFINITE if case.sizes["S"] % 64 else Verdict.ROUNDING)

    case = replace(attention, dims=(("H", 2), ("S", 65), ("D", 8)))
    searched = find_conditions(case, result, judge, sizes_only=True)
    assert str(searched[0]) == "S % 64 != 0 (fails with 65, 66, 32, 16; passes with 64, 128)"


def test_another_head_dim_changes_the_scale_that_follows_from_it() -> None:
    contract = "[{q: x, k: w, v: z, output: out, scale: 0.3535533905932738}]"
    shapes = dict.fromkeys("xwz", "1, H, S, D")
    case = casefile.loads(program("H: 2, S: 7, D: 8", shapes, "out = sdpa x w z", contracts=contract))
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
    assert not (out / FILE).exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_what_a_plain_run_can_not_show_is_replayed_from_a_case_file(
    tmp_path: Path, attention: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 1)
    monkeypatch.setattr(RegressionScript, "is_possible", False)
    subject = f"{PLANTED}:first_rows"
    made = build(Entry(attention), WorkerConfig(device="cpu", timeout=60), tmp_path, subject=subject)
    assert f"\n    python -m fuzz.replay finding.case.yaml --subject {subject}\n" in render("report.md.j2", report=made)
    assert entry.load(tmp_path / "finding.case.yaml").case == attention and not (tmp_path / FILE).exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_a_right_function_gets_no_report(tmp_path: Path, attention: Case) -> None:
    file = entry.save(Entry(attention), tmp_path)
    done = report(file, "--out", tmp_path / "out", "--subject", f"{PLANTED}:right")
    assert done.returncode == 0, done.stderr
    assert "not a bug to report: " in done.stdout
    assert not (tmp_path / "out" / FILE).exists()


@pytest.mark.usefixtures("one_worker", "no_environment")
def test_what_is_no_attention_function_is_an_error(tmp_path: Path, attention: Case) -> None:
    file = entry.save(Entry(attention), tmp_path)
    done = report(file, "--out", tmp_path / "out", "--subject", "inductor")
    *progress, error = done.stderr.splitlines()
    assert (done.returncode, [line for line in progress if not line.startswith("torch ")]) == (2, [])
    assert error.startswith("error: subject 'inductor' is not an attention function")


@pytest.mark.triton_interpreter
@pytest.mark.usefixtures("one_worker", "no_environment")
def test_statistics_stored_without_a_mask_are_told_with_the_sizes_that_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_sizes(monkeypatch, 64, 66, 63, 128)
    text = write_attention(dims="S: 65", shape="1, 2, S, 16")
    out = tmp_path / "out"
    out.mkdir()
    subject = "benchmarks.defects:statistics_without_mask"
    made = build(Entry(casefile.loads(text)), WorkerConfig(device="cpu", timeout=60), out, subject=subject)
    assert made["title"].endswith("wrong gradient dq")
    assert "head 1 of 2, query row 0-62 of 65" in made["where"]
    assert "passes with 64, 128" in "".join(map(str, made["conditions"]))


def test_the_script_shows_a_row_that_keeps_no_key_and_is_not_0(tmp_path: Path, run_all: RunAll) -> None:
    text = write_attention(
        "none = logical_not m",
        "kept = masked_fill scores none",
        mask="S, S; dtype: bool, values: {kind: zeros, seed: 3}",
        contract=", mask: m",
        mode="inference",
    )
    result = SubjectResult("", Verdict.WRONG_RESULT, failure=EmptyRowsNotZero(Value.of_result("out"), 14, (0, 0, 0, 0)))
    names = (f"{PLANTED}:right", f"{PLANTED}:mean_of_hidden")
    done = run_all([written(casefile.loads(text), name, result) for name in names], tmp_path)
    assert [one.returncode for one in done] == [0, 1]


@pytest.mark.compiles
@pytest.mark.torch("<2.16", "an output that is an input where eager's is none")
def test_the_script_shows_that_an_output_is_memory_of_an_input(tmp_path: Path, run_all: RunAll) -> None:
    case = entry.load(ROOT / "corpus" / "known" / "clone-of-written-input.case.yaml").case
    failure = FormDiffers("memory", value=Value("output", 0), actual_owner=Value("input", 0))
    (done,) = run_all([written(case, "inductor", SubjectResult("", Verdict.METADATA, failure=failure))], tmp_path)
    assert (done.returncode, "eager False, compiled True" in done.stdout) == (1, True)
