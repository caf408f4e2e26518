"""What a report says, from verdicts as workers give them."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.protocol import FINDINGS, SubjectResult, Verdict
from generators.program.case import Case
from generators.program.emit import source
from generators.sampling.sample import sample
from tests.triage.conftest import NUMBERS, ablation
from triage.attribution.ablation import EAGER, EMULATED_CASTS, INDUCTOR, Ablation
from triage.attribution.bisector import Bisection
from triage.attribution.cause import Attribution, RootCause
from triage.attribution.explain import explain
from triage.report import reproducer
from triage.report.diagnosis import blame, refusal
from triage.report.draft import commands, issue, refused
from triage.report.title import title

RUN = reproducer.Run(1, "output 0 up to 2.3; off float64: eager 2.2e-07, inductor 0.97; same: False\n", "a log\n")


def with_stage(base: Ablation, name: str, verdict: Verdict) -> Ablation:
    return replace(base, stages=base.stages | {name: replace(base.result, verdict=verdict)})


@pytest.mark.parametrize("verdict", [v for v in Verdict if not v.is_finding])
def test_what_is_no_finding_is_refused_with_the_numbers(case: Case, verdict: Verdict) -> None:
    found = ablation(passes=verdict, inductor=verdict)
    why = refusal(found)
    assert why is not None
    draft = refused(case, found, why)
    assert not draft.is_issue
    assert draft.text.startswith(f"# Not a bug to report: {verdict}\n\n{why}\n")
    assert "| 0.97 |" in draft.text
    assert "eager: 2.2e-07" in draft.text


def test_casts_that_inductor_elides_by_design_are_refused() -> None:
    assert "emulate_precision_casts=True" in (refusal(with_stage(ablation(), EMULATED_CASTS, Verdict.OK)) or "")
    assert refusal(with_stage(ablation(), EMULATED_CASTS, Verdict.WRONG_RESULT)) is None


def test_what_eager_does_too_is_refused() -> None:
    assert "Eager fails too" in (refusal(ablation(eager=Verdict.NONDETERMINISTIC)) or "")


EAGER_MESSAGE = (
    "aten.bmm gives nan where float64 gives 0.31: eager's output 0 is not finite; this subject's is wrong too"
)


def suspected(case: Case, error: float = float("inf")) -> tuple[Ablation, str]:
    numbers = {"eager_error": error, "scale": 1.9, "rows_wrong": 3.0, "rows_total": 80.0, "compiled_error": error}
    result = SubjectResult("eager", Verdict.EAGER_SUSPECT, EAGER_MESSAGE, numbers)
    found = replace(ablation(), accused=EAGER, stages=ablation().stages | {EAGER: result})
    return found, title(case, result, "cpu")


def test_eager_that_is_wrong_is_reported_and_no_compiler_blamed(case: Case) -> None:
    found, name = suspected(case)
    assert refusal(found) is None
    assert name == "[CPU] attention with softmax over dim -2: eager gives NaN or inf, float64 is finite (aten.bmm)"
    assert "eager off by 0.5 (float64), values up to 1.9 (aten.bmm)" in suspected(case, 0.5)[1]
    draft = issue(
        case, found, replace(RUN, output="output 0 up to 1.9; off float64: eager inf\n"), "PyTorch version: 2.13.0"
    )
    assert (
        "The module below is wrong in eager, without a compiler (torch 2.13.0, cpu): aten.bmm gives nan where"
        in draft.text
    )
    assert "`aten.bmm` is the first whose result rounding does not explain" in draft.text
    assert "; 3 of 80 rows are wrong" in draft.text
    for words in ("torch.compile", "this subject", "bisector", "TORCH_COMPILE_BACKEND"):
        assert words not in draft.text
    assert "inductor" not in commands(draft, "out/report.md")[0]


def test_a_compiler_that_is_wrong_in_its_own_way_is_not_acquitted_by_such_an_eager() -> None:
    assert refusal(ablation(eager=Verdict.EAGER_SUSPECT)) is None


def test_what_only_an_internal_subject_shows_is_refused() -> None:
    assert "no user runs them so" in (refusal(ablation(inductor=Verdict.OK)) or "")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ablation(aot_eager=Verdict.WRONG_RESULT), "before Inductor"),
        (ablation(), "a rewrite of the graph (_sfdp_pattern_1_inference)"),
        (ablation(no_patterns=Verdict.WRONG_RESULT), "graph passes alone show it"),
        (ablation(passes=Verdict.OK), "in lowering or code generation."),
        (ablation(passes=Verdict.SKIPPED), "open"),
    ],
)
def test_the_ablation_tells_who_is_to_blame(found: Ablation, words: str) -> None:
    assert words in blame(found)


def test_an_issue_has_all_that_pytorchs_form_asks_for(case: Case) -> None:
    draft = issue(case, ablation(), RUN, "PyTorch version: 2.13.0")
    assert draft.is_issue
    assert source(case).strip() in draft.text
    assert RUN.output.strip() in draft.text
    order = [
        "### In my words",
        "### Describe",
        "```python",
        "| ablation |",
        "`_sfdp_pattern_1",
        "**Repro",
        "### Versions",
    ]
    places = [draft.text.index(words) for words in order]
    assert places == sorted(places)
    assert len(draft.text.splitlines()) < 120
    assert "a log" not in draft.text


def test_cause_bisection_and_explanation_follow_the_ablation(case: Case) -> None:
    cause = RootCause(
        "inductor",
        "joint_graph_passes",
        "_sfdp_pattern_1",
        "constants of the program ignored",
        ("It goes away with it off.",),
    )
    found = Attribution(
        cause, case.id, "inductor", "2.13.0", ablation(), Bisection("inductor", "joint_graph_passes", "pass_pattern_0")
    )
    wrong = ablation().result

    def judge(other: Case) -> SubjectResult:
        mended = any(op.kind == "softmax" and op.attr("dim") is None for op in other.ops)
        return replace(wrong, verdict=Verdict.OK) if mended else wrong

    draft = issue(case, ablation(), RUN, "PyTorch version: 2.13.0", found, explain(case, wrong, judge, rewrite=True))
    parts = [
        "the rewrites of attention, here `_sfdp_pattern_1`: constants of the program ignored.",
        "```python",
        "| ablation |",
        "- It goes away with it off.",
        "**inductor, joint_graph_passes: pass_pattern_0**",
        "Needs dim of softmax = -2",
        "```diff\n- weights = scores.softmax(dim=-2)",
        "**Repro",
        "### Versions",
    ]
    places = [draft.text.index(words) for words in parts]
    assert places == sorted(places)
    assert len(draft.text.splitlines()) < 120


def test_a_report_that_would_be_long_leaves_the_program_to_the_script(case: Case) -> None:
    lines = "\n".join(f"line {number}" for number in range(70))
    text = issue(case, ablation(), RUN, lines).text
    assert len(text.splitlines()) < 120
    assert "lines, at the top of repro.py" in text


def test_an_error_is_told_by_its_log(case: Case) -> None:
    text = issue(case, ablation(inductor=Verdict.COMPILE_ERROR), RUN, "PyTorch version: 2.13.0").text
    assert "### Error logs\n\n```\na log\n```\n" in text
    assert "off float64" not in text


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (SubjectResult("", Verdict.WRONG_RESULT, numbers=NUMBERS), "compiled off by 0.97, eager by 2.2e-07 (float64)"),
        (SubjectResult("", Verdict.WRONG_GRADIENT, numbers=NUMBERS), "gradient off by 0.97"),
        (SubjectResult("", Verdict.NONFINITE, "output 0: 3"), "compiled gives NaN or inf"),
        (SubjectResult("", Verdict.COMPILE_ERROR, "IndexError: no"), "compiling raises IndexError: no"),
        (SubjectResult("", Verdict.TIMEOUT, "no end after 60 s"), "no end after 60 s"),
    ],
)
def test_the_title_is_the_symptom(case: Case, result: SubjectResult, words: str) -> None:
    assert title(case, result, "cpu").startswith(f"[Inductor][CPU] attention with softmax over dim -2: {words}")


def test_the_command_to_open_an_issue_leaves_out_a_body_too_long_for_an_address(case: Case) -> None:
    draft = issue(case, ablation(), RUN, "PyTorch version: 2.13.0")
    assert "--body-file out/report.md --web" in commands(draft, "out/report.md")[1]
    assert "--body-file" not in commands(replace(draft, text="x" * 9000), "out/report.md")[1]


@pytest.mark.parametrize(
    ("verdict", "message", "fired", "words"),
    [
        (Verdict.WRONG_RESULT, "output 0: off", ("pointless_view", "_sfdp_pattern_11_inference"), "_sfdp_pattern_11"),
        (Verdict.NONFINITE, "output 0: 3", ("pointless_view",), "inductor attention NaN"),
        (
            Verdict.COMPILE_ERROR,
            "InductorError: IndexError: list index out of range",
            ("_sfdp_pattern_11",),
            "InductorError IndexError list index out of range",
        ),
        (Verdict.EAGER_SUSPECT, EAGER_MESSAGE, (), "bmm NaN"),
    ],
)
def test_duplicates_are_searched_by_what_others_would_have_written(
    case: Case, verdict: Verdict, message: str, fired: tuple[str, ...], words: str
) -> None:
    found = replace(
        ablation(), stages=ablation().stages | {INDUCTOR: SubjectResult(INDUCTOR, verdict, message, fired=fired)}
    )
    search = commands(issue(case, found, RUN, "PyTorch version: 2.13.0"), "out/report.md")[0]
    assert search == f"gh search issues --repo pytorch/pytorch {words}"


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("verdict", sorted(FINDINGS))
def test_repro_is_one_short_file_that_imports_torch_alone(case: Case, verdict: Verdict, mode: str) -> None:
    text = reproducer.text(replace(case, mode=mode), verdict, 'a "title" with \\ in it')
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize("verdict", [Verdict.WRONG_RESULT, Verdict.EAGER_SUSPECT])
def test_repro_has_one_thread_and_says_where_it_cannot_run(tmp_path: Path, case: Case, verdict: Verdict) -> None:
    text = reproducer.text(case, verdict, "title")
    assert "\ntorch.set_num_threads(1)  # as where it was found" in text
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is broken')")
    (tmp_path / "repro.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (reproducer.CANT_RUN, "")
    assert done.stderr == "this can't run here: OSError('libtorch.so is broken')\n"


def test_repro_has_the_text_that_ran() -> None:
    for index in range(30):
        drawn = sample(7, index)
        text = reproducer.text(drawn, Verdict.WRONG_RESULT, "title")
        assert source(drawn).strip() in text
        assert imported(text) - set(sys.stdlib_module_names) == {"torch"}


def imported(text: str) -> set[str]:
    names = [
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ]
    return {name.partition(".")[0] for name in names}
