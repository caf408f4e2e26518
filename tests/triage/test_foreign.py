"""Faults planted on the way of a program into another compiler: the cause names project, stage and part."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from corpus.causes import Details, Stage
from fuzz.ask.question import AnswerCache, Question, build_check
from fuzz.attribution.attribute import find_cause, study_cheapest
from fuzz.attribution.decide import decides
from fuzz.attribution.root_cause import RootCause
from fuzz.check.check import check
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.settings import configure_torch
from fuzz.compilers import onnxruntime
from fuzz.compilers.table import COMPILERS, VARIATIONS
from fuzz.experiments import Trial
from fuzz.protocol import NodeParted, Parted, Result, SubjectResult, Verdict
from fuzz.protocol.failures import Process, ProcessLost
from generators.program.case import Case
from tests.fake_asker import FakeAsker, FakeEvaluator
from tests.programs import program
from tests.triage.conftest import known

CASE = program(
    "B: 2, H: 3, S: 4, T: 5, D: 8",
    {"q": "B, H, S, D", "k": "B, H, D, T", "v": "B, H, T, D", "mask": "B, 1, S, T"},
    "scores = matmul q k",
    "scaled = mul scores, other: 0.35",
    "masked = add scaled mask",
    "weights = softmax masked",
    "out = matmul weights v",
    mode="inference",
)
WRONG = SubjectResult("openvino", Verdict.WRONG_RESULT)


class InProcess(FakeAsker):
    """Judges in this process, where faults are planted."""

    def __init__(self) -> None:
        super().__init__(lambda case, subject, *trials: self.ask(Question(case, (subject,), trials)).only)

    def ask(self, question: Question, meanwhile: Callable[[], object] = lambda: None) -> Result:
        configure_torch()
        (subject,) = question.subjects
        request = build_check(question, repeat=1)
        return check(request, {subject: find(subject)}, "cpu")


def find_planted(subject: str) -> tuple[RootCause, list[bool]]:
    """The cause under the subject, and whether its experiments say so again, of a case with another operation too."""
    entry, asker = known(CASE, subject), AnswerCache(InProcess())
    cause = find_cause(entry, asker)
    longer = CASE.replace("returns: [out]", "  - {name: last, op: neg, args: [out]}\nreturns: [last]")
    studies = (study_cheapest(one, asker) for one in (entry, known(longer, subject)))
    return cause, [decides(cause.decided_by, study) for study in studies]


@pytest.mark.samples
def test_a_wrong_decomposition_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    decompose = ExportedProgram.run_decompositions

    def decompose_wrongly(self: ExportedProgram, *args: Any, **named: Any) -> ExportedProgram:
        program: ExportedProgram = decompose(self, *args, **named)
        for node in program.graph.nodes:
            if node.target is torch.ops.aten._softmax.default:
                node.args = (node.args[0], 0, False)
        program.graph_module.recompile()
        return program

    monkeypatch.setattr(ExportedProgram, "run_decompositions", decompose_wrongly)
    cause, again = find_planted("openvino")
    assert (cause.who, cause.stage, cause.part) == ("aot", Stage.DECOMPOSITION, "softmax")
    assert again == [True, True]


@pytest.mark.samples
def test_a_swapped_attribute_of_the_onnx_model_is_the_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx_ir

    export = torch.onnx.export

    def export_wrongly(*args: Any, **named: Any) -> Any:
        program = export(*args, **named)
        assert program is not None
        for node in program.model.graph:
            if node.op_type == "Softmax":
                node.attributes["axis"] = onnx_ir.AttrInt64("axis", 0)
        return program

    monkeypatch.setattr(torch.onnx, "export", export_wrongly)
    cause, again = find_planted("onnxruntime")
    assert (cause.who, cause.stage, cause.part) == ("onnxscript", Stage.CONVERSION, "softmax")
    assert again == [True, True]


def plant_in_sessions(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], None], step: str = "") -> None:
    """ONNX Runtime gets models in which nodes are changed, but while this step is off. change: takes graph and node"""
    import onnx

    open_session = onnxruntime.open_session

    def open_wrongly(model: str | bytes, *, level: str = "ENABLE_ALL", disabled: str = "") -> Any:
        is_off = bool(step) and (level in ("DISABLE_ALL", "ENABLE_BASIC") or step in disabled.split(","))
        proto = onnx.load_from_string(model)
        for node in () if is_off else [*proto.graph.node]:
            change(proto.graph, node)
        return open_session(proto.SerializeToString(), level=level, disabled=disabled)

    monkeypatch.setattr(onnxruntime, "open_session", open_wrongly)


@pytest.mark.samples
def test_an_optimizer_that_folds_a_factor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(_graph: Any, node: Any) -> None:
        if node.op_type == "Mul":
            node.op_type, node.input[1] = "Identity", ""
            del node.input[1]

    plant_in_sessions(monkeypatch, fold, "MatMulScaleFusion")
    cause, again = find_planted("onnxruntime")
    found = cause.who, cause.stage, cause.part, cause.mechanism.details
    assert found == ("onnxruntime", Stage.GRAPH_OPTIMISATION, "MatMulScaleFusion", (("operators", ("Mul",)),))
    assert cause.decided_by == (("first_node", ("Mul",)), ("onnxruntime_optimizer", ("MatMulScaleFusion",)))
    assert again == [True, True]


@pytest.mark.samples
def test_a_kernel_that_ignores_a_mask_is_the_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(_graph: Any, node: Any) -> None:
        if node.op_type == "Add":
            node.op_type = "Identity"
            del node.input[1]

    plant_in_sessions(monkeypatch, ignore)
    cause, again = find_planted("onnxruntime")
    assert (cause.who, cause.stage, cause.part) == ("onnxruntime", Stage.RUNTIME, "Add")
    assert again == [True, True]


def judge(*right: str, **given: SubjectResult) -> tuple[RootCause, list[str]]:
    asker = FakeEvaluator(WRONG, "eager", "export", "export_decomposed", *right, **given)
    return find_cause(known(CASE, "openvino"), asker), asker.asked


@pytest.mark.parametrize(
    ("right", "stage", "part", "decided_by"),
    [
        (
            ("openvino_snippets_off", "openvino_evaluated"),
            Stage.GRAPH_OPTIMISATION,
            "snippets",
            "openvino_snippets_off",
        ),
        (
            ("openvino_with_sizes", "openvino_evaluated"),
            Stage.GRAPH_OPTIMISATION,
            "dynamic_sizes",
            "openvino_with_sizes",
        ),
        (("openvino_evaluated",), Stage.RUNTIME, "MatMul,Softmax", "openvino_evaluated"),
    ],
)
def test_the_first_variation_that_passes_decides(
    right: tuple[str, ...], stage: Stage, part: str, decided_by: str
) -> None:
    node = SubjectResult(
        "openvino", Verdict.WRONG_RESULT, observations=(NodeParted(("MatMul", "Softmax"), ("aten.bmm.default",)),)
    )
    cause, _ = judge(*right, first_node=node)
    expected: Details = (("first_node", ("MatMul,Softmax",)), (decided_by, ()))
    assert (cause.who, cause.stage, cause.part, cause.decided_by) == ("openvino", stage, part, expected)


def test_a_variation_that_changes_nothing_is_not_tried() -> None:
    assert "openvino_with_sizes" in judge()[1]
    asker = FakeEvaluator(WRONG, "eager", "export", "export_decomposed")
    find_cause(known(CASE, "openvino_sized"), asker)
    assert "openvino_with_sizes" not in asker.asked


def test_a_lost_process_costs_no_further_process() -> None:
    lost = SubjectResult("openvino", Verdict.WORKER_DIED, failure=ProcessLost(Process.SIGNAL, "SIGSEGV"))
    asker = FakeEvaluator(lost, "eager")
    cause = find_cause(known(CASE, "openvino"), asker)
    assert (cause.who, cause.stage) == ("openvino", Stage.OPEN)


def test_a_failure_of_a_compiler_of_the_users_is_its_own_unless_the_exported_program_fails() -> None:
    own = "my.compilers:compile_module"
    for failing, who, part in ((False, own, "matmul"), (True, "aot", "torch_export")):

        def answer(case: Case, subject: str, *_: Trial, is_failing: bool = failing) -> SubjectResult:
            is_wrong = subject == own or (is_failing and subject == "export")
            parted = (Parted(output=0),) if len(case.returns) > 1 else ()
            return SubjectResult(subject, Verdict.WRONG_RESULT if is_wrong else Verdict.OK, observations=parted)

        cause = find_cause(known(CASE, own), FakeAsker(answer))
        assert (cause.who, cause.part) == (who, part)


def test_another_first_node_is_another_bug() -> None:
    seen = {"MatMul,Softmax": ("MatMul", "Softmax", "Transpose"), "Add": ("MatMul",)}

    def answer(_case: Case, subject: str, *trials: Trial) -> SubjectResult:
        is_off = trials and trials[0].experiment == "openvino_snippets_off"
        verdict = Verdict.OK if is_off or subject == "eager" else Verdict.WRONG_RESULT
        return SubjectResult(subject, verdict, observations=(NodeParted(observed),) if trials else ())

    for wanted, observed in seen.items():
        study = study_cheapest(known(CASE, "openvino"), FakeAsker(answer))
        decided_by: Details = (("first_node", (wanted,)), ("openvino_snippets_off", ()))
        assert decides(decided_by, study) is ({*wanted.split(",")} <= {*observed})


def test_variations_have_stages_and_fill_in_what_they_name() -> None:
    of = {row.id: compiler for compiler in COMPILERS.values() for row in compiler.variations}
    for row in VARIATIONS.values():
        assert Stage(row.stage) and of[row.id].project and row.who
        assert bool(row.arguments) is ("{}" in row.keywords.values()) is ("{}" in row.words)
