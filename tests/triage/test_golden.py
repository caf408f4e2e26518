"""Reports and scripts compared whole with tests/triage/golden/KIND: one for each kind of failure.

A script has the code of its report; script.txt has its other lines.

To record them anew: `python -m tests.triage.test_golden`, then read the diff as the maintainer who gets the report.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from corpus import casefile
from corpus.causes import Mechanism, MechanismKind, Stage
from corpus.entry import Entry
from fuzz.attribution.ablation import AOT_EAGER, EAGER, INDUCTOR, PASSES, Ablation
from fuzz.attribution.root_cause import RootCause
from fuzz.experiments import Outcome, Tried
from fuzz.protocol import Hello, SubjectResult, Verdict, WrongElements
from fuzz.protocol.failures import FaultyOperation, FormDiffers, Raised, Value, WrongValue
from fuzz.protocol.rewrites import OtherConstant, WrongRewrite
from tests.programs import program
from tests.triage.conftest import NUMBERS, SOFTMAX_OVER_QUERIES
from tests.triage.test_kernel import ATTENTION
from tests.triage.test_report import NEGATIVE_SCALE
from triage.rendering import render
from triage.report.build import Evidence, write_report
from triage.report.failing_run import FailingRun
from triage.report.regression import write_case
from triage.report.rules import ChoiceRule, Condition, SizeRule
from triage.report.wording import title

GOLDEN = Path(__file__).parent / "golden"
SEEN_AS = program("B: 2, S: 3", {"x": "B, S; layout: transposed"}, "sums = add x, other: 1.0", "out = exp sums")
OUTPUT, GRADIENT = Value("output", 0), Value("input", 0, is_gradient=True)
FORMS = "eager (1, 2), compiled (3, 1)\n"
LOG = "Traceback (most recent call last):\nIndexError: list index out of range\n"
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Kind:
    """A failure as a worker would give it. `cause`: what experiments would find."""

    text: str
    result: SubjectResult
    cause: RootCause
    run: CompletedProcess[str]
    passing: tuple[str, ...] = (EAGER, AOT_EAGER)
    conditions: tuple[Condition, ...] = ()
    seen: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> dict[str, str]:
        """The files of its report, by name."""
        entry = Entry(casefile.loads(self.text), seen=self.seen)
        accused = self.result.subject
        stages = {name: replace(self.result, subject=name, verdict=Verdict.OK, failure=None) for name in self.passing}
        stages[accused] = self.result
        ablation = Ablation(Hello("2.13.0", "3.11", "cpu", "g++", 1), stages, accused)
        bug = FailingRun(case=entry.case, result=self.result, title=title(entry.case, self.result, "cpu"))
        evidence = Evidence(self.run, self.cause, self.conditions, environment="PyTorch version: 2.13.0")
        report = write_report(entry, ablation, evidence)
        script = write_case(bug).write(self.cause.key)
        text = render("report.md.j2", report=report)
        return {"report.md": text, "script.txt": leave_out_code(script, text)}


def leave_out_code(script: str, report: str) -> str:
    """The script without the code of its report, which must stand in it in the same order."""
    code = [line.strip() for line in report.partition("```python\n")[2].partition("```")[0].splitlines()]
    left = list[str]()
    for line in script.splitlines():
        if code and line.strip() == code[0]:
            code.pop(0)
        else:
            left.append(line)
    assert not code
    return "\n".join([*left, ""])


KINDS = {
    "wrong_values": Kind(
        SOFTMAX_OVER_QUERIES,
        SubjectResult(
            INDUCTOR,
            Verdict.WRONG_RESULT,
            numbers=NUMBERS,
            failure=WrongValue(OUTPUT, (1, 0), error=0.9, ratio=9e4, limit=32.0, eager_error=2e-7),
            applied_rewrites=("_sfdp_pattern_1_inference",),
        ),
        RootCause(
            "inductor",
            Stage.JOINT_PASSES,
            "_sfdp_pattern_1",
            Mechanism(MechanismKind.CONSTANTS_IGNORED),
            (Tried("unfused", "", Outcome.PASSES),),
            (WrongRewrite("_sfdp_pattern_1_inference", {}, {}, constants=(OtherConstant("softmax", "-2", "-1"),)),),
        ),
        CompletedProcess((), 1, "float64 up to 2.3; off by: eager 2.2e-07, compiled 0.97\n", ""),
        passing=(EAGER, AOT_EAGER),
        conditions=(Condition("dim of softmax", ChoiceRule((-2,)), (-2,), (-1, -3)),),
        seen={"2.12.1": "ok"},
    ),
    "exception": Kind(
        SOFTMAX_OVER_QUERIES,
        SubjectResult(INDUCTOR, Verdict.COMPILE_ERROR, failure=Raised("IndexError", "list index out of range")),
        RootCause("inductor", Stage.JOINT_PASSES, "_sfdp_pattern_1", Mechanism(MechanismKind.COMPILE_ERROR)),
        CompletedProcess((), 1, "", LOG),
    ),
    "metadata": Kind(
        SEEN_AS,
        SubjectResult(INDUCTOR, Verdict.METADATA, failure=FormDiffers("strides", "[3, 1]", "[1, 2]", OUTPUT)),
        RootCause("aot", Stage.DECOMPOSITION, "aten.add", Mechanism(MechanismKind.STRIDES)),
        CompletedProcess((), 1, FORMS, ""),
    ),
    "attention_function": Kind(
        ATTENTION,
        SubjectResult(
            "mine.kernels:attend",
            Verdict.WRONG_GRADIENT,
            failure=WrongValue(GRADIENT, (0, 1, 0, 0), error=0.5, ratio=9e3, limit=12.0, eager_error=1e-7),
            where=WrongElements(GRADIENT, (1, 2, 7, 8), 40, (((0, 0),), ((1, 1),), ((0, 4),), ((0, 7),))),
        ),
        RootCause("mine.kernels:attend", Stage.KERNEL, "attend_backward", Mechanism(MechanismKind.OTHER_VALUES)),
        CompletedProcess((), 1, "float64 up to 1.2; off by: eager 1e-07, kernel 0.5\n", ""),
        passing=(EAGER, "sdpa_math"),
        conditions=(Condition("H", SizeRule(above=1), (2, 3), (1,)),),
        seen={"2.12.1": "ok"},
    ),
    "operation_of_eager": Kind(
        NEGATIVE_SCALE,
        SubjectResult(
            EAGER,
            Verdict.EAGER_SUSPECT,
            numbers={"eager_error": math.inf, "scale": 1.9},
            failure=FaultyOperation(FLASH, math.nan, 0.31, OUTPUT, math.inf),
        ),
        RootCause("eager", Stage.OPERATION, FLASH, Mechanism(MechanismKind.NOT_FINITE)),
        CompletedProcess((), 1, "float64 up to 0.66; off by: eager nan\n", ""),
        passing=(AOT_EAGER, PASSES, INDUCTOR),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_and_its_script_are_as_recorded(kind: str) -> None:
    for name, text in KINDS[kind].render().items():
        assert text == (GOLDEN / kind / name).read_text(encoding="utf-8"), name
        assert len(text.splitlines()) < 160, name


if __name__ == "__main__":
    for kind, given in KINDS.items():
        for name, text in given.render().items():
            (GOLDEN / kind).mkdir(parents=True, exist_ok=True)
            (GOLDEN / kind / name).write_text(text, encoding="utf-8")
