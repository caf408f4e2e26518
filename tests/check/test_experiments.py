"""Experiments on a subject: their changes, their observations, and a torch that lacks a name they need."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import _refs
from torch._inductor import config, pattern_matcher

from fuzz.check.prove.pattern_constants import (
    compare_constants,
    find_differences,
    read_known_pattern,
    read_outputs,
    trace_pattern,
)
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.run.subject_changes import apply_experiments
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.torch_places import find_raising
from fuzz.experiments import EXPERIMENTS, StepLimit, Trial, WithSetting
from fuzz.protocol import Observation, Parted, Running, StepsTaken, Verdict
from fuzz.protocol.failures import NotTaken, Refusal
from fuzz.protocol.places import LocatedBy
from tests.check.client import Asker
from tests.check.in_process import changing, plain, run_subject, source

PLANTED = "tests.check.planted"
_MATCHER = "torch._inductor.pattern_matcher"
ON_SUBJECTS = [
    Trial(row.id, "3" if isinstance(row.change, StepLimit) else "")
    for row in EXPERIMENTS.values()
    if isinstance(row.change, (WithSetting, StepLimit))
]


def under(*trials: Trial) -> Subject:
    return apply_experiments(find("passes"), trials)


@pytest.mark.parametrize(
    "values", [{"no_such_setting": 1}, {"cpp.no_such_setting": 1}, {"pattern_matcher": False, "no_such.setting": 1}]
)
def test_a_setting_that_this_torch_lacks_skips_the_control(values: dict[str, Any]) -> None:
    with pytest.raises(SubjectError), settings.apply(values):
        pass


def test_a_setting_holds_while_the_control_is_entered() -> None:
    before = config.cpp.simdlen
    with under(Trial("unvectorized")).apply_settings():
        assert config.cpp.simdlen == 1
    assert config.cpp.simdlen == before


def test_controls_add_up() -> None:
    with under(Trial("unvectorized"), Trial("pattern_matcher_off")).apply_settings():
        assert (config.cpp.simdlen, config.pattern_matcher) == (1, False)
    assert config.pattern_matcher


@pytest.mark.parametrize(
    ("trial", "missing"),
    [
        (Trial("pass", "3"), f"{_MATCHER}.PatternMatcherPass"),
        (Trial("pass", "3"), f"{_MATCHER}.PatternMatcherPass.apply"),
        (Trial("lowering", "3"), "torch._inductor.compiler_bisector.CompilerBisector.disable_subsystem"),
        (Trial("unfused"), "torch._inductor.scheduler.Scheduler.can_fuse"),
    ],
)
def test_a_name_that_this_torch_lacks_skips_the_control(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, missing: str
) -> None:
    monkeypatch.delattr(missing)
    with pytest.raises(SubjectError) as error, under(trial).apply_settings():
        pass
    assert missing.rpartition(".")[2] in str(error.value)


def test_the_first_wrong_output_of_several_is_told() -> None:
    wrong = changing(lambda values: (values[0], 2 * values[1], 2 * values[2]), "asked")
    text = source("scores = q @ k.transpose(-2, -1)", "return scores, scores.softmax(-1), scores.softmax(-1) @ v")
    assert run_subject(wrong, text=text).observations == (Parted(output=1),)
    assert run_subject(Subject("asked"), text=text).observations == ()


@pytest.mark.compiles
@pytest.mark.parametrize("number", [1, 5, 15])
def test_constants_of_the_patterns_of_this_torch_are_read(number: int) -> None:
    with compare_constants(lambda seen: None):
        result = run_subject(find("passes"), text=plain())
    assert any("sfdp" in name for name in result.applied_rewrites)
    items = map(read_known_pattern, pattern_matcher._known_precompiled_patterns)
    search, examples, _, scalars, pattern = next(
        item for item in items if item[0].__name__ == f"_sfdp_pattern_{number}"
    )
    operands = dict(zip(inspect.signature(search).parameters, [*examples, *(scalars or {}).values()], strict=True))
    entry = SimpleNamespace(pattern=pattern)
    outputs = read_outputs(trace_pattern(entry, operands))
    kept = [index for index, output in enumerate(outputs) if output is not None]
    assert kept and find_differences(entry, operands, kept, [outputs[index] for index in kept]) == []


@pytest.mark.worker
def test_a_worker_says_what_controls_observe_and_forgets_it(worker: Asker) -> None:
    plainly = worker.one(plain(), "passes")
    assert plainly.observations == () and any("_sfdp_pattern_1" in name for name in plainly.applied_rewrites)
    limited = worker.one(plain(), "passes", experiments=(Trial("pass", "3"),))
    (taken,) = limited.observations
    assert isinstance(taken, StepsTaken) and taken.count == 3 and limited.applied_rewrites == ()
    again = worker.one(plain(), "passes")
    assert (again.observations, again.applied_rewrites, again.numbers) == (
        (),
        plainly.applied_rewrites,
        plainly.numbers,
    )


@pytest.mark.worker
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("subject", "operation", "training"),
    [
        ("dynamo", "planted.die", False),
        ("aot_eager", "planted.die", True),
        ("inductor", "planted.die", False),
        ("inductor", "planted.die", True),
        (f"{PLANTED}:dies", "", False),
    ],
)
def test_attribution_names_the_operation_that_ends_the_process(
    worker: Asker, subject: str, operation: str, *, training: bool
) -> None:
    program = source(
        "out = (q @ k.mT).softmax(-1)",
        "if torch.compiler.is_compiling():",
        "    out = torch.ops.planted.die(out, later=self.training)",
        "return out * 2",
    )
    lost = worker.one(program, subject, training=training, experiments=(Trial("noted"),))
    assert (lost.verdict, lost.observations) == (Verdict.WORKER_DIED, (Running(operation),))


@pytest.mark.worker
def test_noting_operations_changes_neither_the_compiled_program_nor_the_kernel_of_attention(worker: Asker) -> None:
    program = source("return F.scaled_dot_product_attention(q, k, v)")
    plainly, noted = (worker.one(program, "passes", experiments=trials) for trials in ((), (Trial("noted"),)))
    assert (noted.verdict, noted.coverage) == (plainly.verdict, plainly.coverage)
    assert noted.observations == (Running(),)


@pytest.mark.worker
def test_no_control_leaves_anything_switched(worker: Asker) -> None:
    before = worker.one(plain(), "passes")
    for trial in ON_SUBJECTS:
        assert worker.one(plain(), "passes", experiments=(trial,)).verdict in {Verdict.OK, Verdict.ROUNDING}, trial
    after = worker.one(plain(), "passes")
    assert (after.applied_rewrites, after.numbers, after.coverage) == (
        before.applied_rewrites,
        before.numbers,
        before.coverage,
    )


@pytest.mark.worker
def test_a_control_of_compilers_is_refused_for_an_attention_function(worker: Asker) -> None:
    result = worker.one(plain(), "sdpa_math", experiments=(Trial("unfused"),))
    assert result.verdict is Verdict.SKIPPED
    assert isinstance(result.failure, NotTaken) and result.failure.why is Refusal.UNSUPPORTED


GATED = source(
    "scores = q @ k.transpose(-2, -1)", "return (F.silu(scores.exp() * 0.5) + scores).relu() @ v", dims="1, 2, 5, 8"
)


def take(subject: str, argument: str) -> tuple[StepsTaken, Any]:
    seen: list[Observation] = []
    result = run_subject(apply_experiments(find(subject), [Trial(*argument.split())], seen.append), text=GATED)
    assert not result.verdict.is_finding and isinstance(seen[0], StepsTaken)
    return seen[0], result


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("subject", "kind", "name"),
    [
        ("aot_eager_decomp_partition", "decomposition", "aten.silu"),
        ("passes", "pass", "remove_noop_ops"),
        ("inductor", "lowering", "relu"),
    ],
)
def test_each_step_can_be_the_last_and_has_a_name(subject: str, kind: str, name: str) -> None:
    whole, _ = take(subject, f"{kind} 1000")
    assert (taken := take(subject, f"{kind} 0")[0]).count == 0 and taken.last == ""
    assert any(take(subject, f"{kind} {most}")[0].last == name for most in range(whole.count, 0, -1))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("subject", "argument", "file", "function"),
    [
        ("aot_eager_decomp_partition", "decomposition aten.silu", "_inductor/decomposition.py", "silu"),
        ("passes", "pass remove_noop_ops", "_inductor/fx_passes/post_grad.py", "remove_noop_ops"),
        ("passes", "pass mul_softmax_pattern", "_inductor/fx_passes/joint_graph.py", "mul_softmax_pattern"),
        ("inductor", "lowering relu", "_inductor/lowering.py", ""),
    ],
)
def test_a_step_that_is_left_out_has_a_place(subject: str, argument: str, file: str, function: str) -> None:
    text = source(
        "scores = (q @ k.transpose(-2, -1)) * 2.0", "return F.silu(scores.softmax(-1).relu()) @ v", dims="1, 2, 5, 8"
    )
    seen: list[Observation] = []
    run_subject(apply_experiments(find(subject), [Trial(*argument.split())], seen.append), text=text)
    assert isinstance(seen[0], StepsTaken)
    place = seen[0].left_out[0]
    assert place.file == file and function in place.function and place.line > 0


@pytest.mark.compiles
def test_a_pattern_that_is_left_out_has_the_places_of_its_parts() -> None:
    seen: list[Observation] = []
    run_subject(apply_experiments(find("passes"), [Trial("pass", "_sfdp_pattern_1")], seen.append), text=plain())
    assert isinstance(seen[0], StepsTaken)
    parts = {place.found: place for place in seen[0].left_out}
    assert {place.file for place in parts.values()} == {"_inductor/fx_passes/fuse_attention.py"}
    assert parts[LocatedBy.REPLACEMENT].function == "_sfdp_replacement_1"
    assert parts[LocatedBy.PATTERN].function == "_sfdp_pattern_1"


def test_the_place_of_an_exception_is_the_innermost_line_of_the_compiler() -> None:
    with pytest.raises(ValueError, match="view") as error:
        _refs.view(torch.ones(4, 4).T, (16,))
    place = find_raising(error.value)
    assert place is not None and (place.file, place.found) == ("_refs/__init__.py", LocatedBy.RAISED)
    assert find_raising(ZeroDivisionError()) is None


@pytest.mark.compiles
def test_without_passes_no_rewrite_is_applied() -> None:
    assert take("passes", "pass 0")[1].applied_rewrites == ()
