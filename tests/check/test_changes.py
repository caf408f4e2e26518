"""Changes of a module between calls: each has its effect in eager, is put back, refused where it makes no sense, and a
compiler that overlooks it is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus.casefile import dumps, loads
from corpus.shrink import shrink
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.edits import UNCHANGED
from fuzz.check.run.program import Execution, Program, execute, same_bits
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.experiments import EXPERIMENTS
from fuzz.protocol import Verdict
from generators.program.calls import at_call
from generators.program.case import Case, Change, Input, LaterCall, Values
from generators.program.changes import KINDS, list_changes, without_changes
from generators.program.edits import prune_if_valid
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.sizes import Size
from generators.program.type_check import check as check_case
from generators.program.type_check import prune
from tests.check.test_sequences import Compiled, as_it_is, run

B, D = Size.of("B"), Size.of("D")
CASE = Case(
    dims=(("B", 3), ("D", 4)),
    inputs=(
        Input("x", (B, D), "float32"),
        Input("w", (D,), "float32", Values(seed=1), parameter=True),
        Input("v", (D,), "float32", Values(seed=2), parameter=True),
        Input("state", (D,), "float32", Values(seed=3), parameter=True, buffer=True),
    ),
    ops=(
        make_op("scaled", "mul", ["x", "w"], {}),
        make_op("shifted", "add", ["scaled", "v"], {}),
        make_op("moved", "add", ["shifted", "state"], {}),
        make_op("proj", "layer", ["moved"], {"of": "Linear", "out": D, "seed": 4}),
        make_op("out", "dropout", ["proj"], {"p": 0.5, "form": "module"}),
    ),
    returns=("out",),
    mode="training",
    calls=(LaterCall(reseeds=True), LaterCall(reseeds=True)),
)
CHANGES = {
    "tied": Change("tied", "w", "v"),
    "cast": Change("cast", "state", "float16"),
    "layer_replaced": Change("layer_replaced", "proj"),
    "layer_eval": Change("layer_eval", "out"),
    **{kind: Change(kind, "w") for kind in ("replaced", "data_replaced", "data_written", "frozen")},
    **{kind: Change(kind, "w") for kind in ("gradient_hook", "accumulated_hook")},
    **{kind: Change(kind, "proj") for kind in ("pre_hook", "forward_hook", "backward_hook")},
}


def changed(*changes: Change, setup: tuple[Change, ...] = (), case: Case = CASE) -> Case:
    """The case with changes before its second call."""
    return replace(case, setup=setup, calls=(replace(case.calls[0], changes=changes), *case.calls[1:]))


def run_twice(case: Case) -> Execution:
    """The results of a case in eager, after a check that a second run of the same module gives them again."""
    check_case(case)
    program = Program(source(case))
    module = program.module(case.training)
    first, again = (
        execute(module, module, program.calls(module), training=case.training, watched=True) for _ in range(2)
    )
    assert first.values.keys() == again.values.keys()
    assert all(map(same_bits, first.values.values(), again.values.values()))
    return first


def results_of(run: Execution, call: int) -> list[Tensor]:
    return [value for name, value in run.values.items() if name.call == call]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_shows_from_its_call_on_and_is_put_back(kind: str) -> None:
    plain, now = run_twice(changed()), run_twice(changed(CHANGES[kind]))
    assert all(map(torch.equal, results_of(plain, 1), results_of(now, 1)))
    for call in (2, 3):
        one, other = results_of(plain, call), results_of(now, call)
        assert len(one) != len(other) or not all(map(torch.equal, one, other))


def test_a_layer_in_an_ensemble_gives_what_it_gives_alone() -> None:
    members = make_op("proj", "layer", ["moved"], {"of": "Linear", "out": D, "seed": 4, "form": "ensemble"})
    case = changed(CHANGES["layer_replaced"], case=replace(CASE, ops=(*CASE.ops[:-2], members, CASE.ops[-1])))
    assert "torch.func.functional_call" in source(case) and "functional_call" not in source(case, plain=True)
    assert loads(dumps(case)) == case
    alone, together = run_twice(changed(CHANGES["layer_replaced"])), run_twice(case)
    assert alone.values.keys() == together.values.keys()
    for one, other in zip(alone.values.values(), together.values.values(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [kind for kind in CHANGES if KINDS[kind].is_hook])
def test_a_removed_hook_no_longer_runs(kind: str) -> None:
    case = changed(Change("unhooked"), setup=(CHANGES[kind],))
    assert "hook1.remove()" in source(case)
    hooked, unhooked, plain = run_twice(changed(setup=case.setup)), run_twice(case), run_twice(changed())
    assert all(map(torch.equal, results_of(hooked, 1), results_of(unhooked, 1)))
    if kind not in ("accumulated_hook", "gradient_hook", "backward_hook"):  # gradients add up over calls
        outputs = [name for name in plain.outputs if name.call == 2]
        assert all(torch.equal(plain.values[name], unhooked.values[name]) for name in outputs)
    differs = zip(results_of(hooked, 2), results_of(unhooked, 2), strict=True)
    assert not all(torch.equal(one, other) for one, other in differs)


def test_marks_and_stances_last_for_one_call() -> None:
    marks = tuple(Change(kind, "x", axis=1) for kind in ("dynamic", "static", "unbacked"))
    case = changed(*marks, Change("force_eager"))
    text = source(case)
    assert "    torch._dynamo.maybe_mark_dynamic(given[0], 1)\n" in text
    assert '    with torch.compiler.set_stance("force_eager"):\n        yield given\n' in text
    inputs = list(Program(text).calls(Program(text).module(training=True)))
    assert [sorted(vars(given[0])) == [] for given in inputs] == [True, False, True]
    assert at_call(case, 2).setup == ()
    run_twice(case)


@pytest.mark.worker
def test_a_stance_in_the_first_compilation_of_a_process_is_no_finding() -> None:
    with open_evaluator(WorkerConfig(timeout=120)) as fresh:
        result = fresh.ask(Question(changed(setup=(Change("force_eager"),)), ("passes",))).only
    assert not result.verdict.is_finding


def test_files_identities_and_pruning_keep_changes() -> None:
    case = changed(CHANGES["replaced"], Change("unhooked"), setup=(CHANGES["forward_hook"],))
    assert loads(dumps(case)) == case
    assert len({one.id for one in (case, replace(case, setup=()), CASE)}) == 3
    pruned = prune(replace(case, returns=("v",)))
    assert [*list_changes(pruned)] == []
    check_case(pruned)
    assert [*list_changes(without_changes(case, "forward_hook"))] == [CHANGES["replaced"]]
    assert EXPERIMENTS[UNCHANGED].mechanism == "changed"


def test_a_call_by_itself_has_the_module_as_it_is_then() -> None:
    case = changed(CHANGES["replaced"], CHANGES["cast"], setup=(CHANGES["forward_hook"],))
    alone = at_call(case, 2)
    assert alone.setup == (CHANGES["forward_hook"], CHANGES["replaced"])
    assert {item.name: item.dtype for item in alone.inputs}["state"] == "float16"


def with_first_tensors(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """A guard that ignores that a parameter is another tensor."""
    first: dict[str, Tensor] = {}

    def call(x: Tensor) -> Any:
        first.update({} if first else dict(module.named_parameters()))
        return torch.func.functional_call(module, {**dict(module.named_parameters()), **first}, x)

    return call


def with_first_hooks(module: nn.Module, _dynamic: bool | None) -> Compiled:
    """A guard that ignores hooks, which are as at the first call."""
    hooks: dict[nn.Module, dict[int, Any]] = {}

    def call(x: Tensor) -> Any:
        for part in module.modules():
            now = part._forward_hooks
            first = hooks.setdefault(part, dict(now))
            now.clear()
            now.update(first)
        return module(x)

    return call


@pytest.mark.samples
@pytest.mark.parametrize(
    ("compile_module", "kind"), [(with_first_tensors, "replaced"), (with_first_hooks, "forward_hook")]
)
def test_a_compiler_that_overlooks_a_change_is_found_and_needs_it_alone(
    compile_module: Callable[[nn.Module, bool | None], Compiled], kind: str
) -> None:
    def fails(case: Case) -> bool:
        return run(case, compile_module).verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)

    case = changed(*(CHANGES[name] for name in ("data_written", "frozen", kind)), setup=(CHANGES["pre_hook"],))
    assert run(case, as_it_is).verdict is Verdict.OK
    assert fails(case)
    smallest = shrink(case, fails)[-1]
    assert [change.kind for change in list_changes(smallest)] == [kind]
    assert (len(smallest.calls), len(smallest.ops)) == (1, 1)


@pytest.mark.compiles
@pytest.mark.parametrize(("plant", "kind"), [("parameter_stale", "replaced"), ("hook_unguarded", "forward_hook")])
def test_mistakes_planted_in_torch_are_found(plant: str, kind: str) -> None:
    with wrap(*FUNCTIONS[plant]):
        assert run(changed(CHANGES[kind]), find("passes").compile).verdict.is_finding
    assert run(changed(CHANGES[kind]), find("passes").compile).verdict is Verdict.OK


@pytest.mark.compiles
@pytest.mark.parametrize("kind", [*CHANGES, "unhooked"])
def test_dynamo_is_right_about_every_change(kind: str) -> None:
    pair = (changed(Change("unhooked"), setup=(CHANGES["forward_hook"],)), changed(CHANGES.get(kind, Change(kind))))
    assert run(pair[kind != "unhooked"], find("dynamo").compile).verdict is Verdict.OK


def test_exported_programs_are_not_run_for_a_changed_module() -> None:
    base = replace(CASE, mode="inference", ops=CASE.ops[:-1], returns=("proj",), calls=(LaterCall(),))
    for case in (changed(CHANGES["data_written"], case=base), changed(CHANGES["forward_hook"], case=base)):
        assert run(case, find("export").compile).verdict is Verdict.SKIPPED
    assert run(base, find("export").compile).verdict is Verdict.OK


@pytest.mark.compiles
@pytest.mark.parametrize("way", ["in_place", "method", "parts", "twice", ""])
def test_each_way_of_compiling_compiles(way: str) -> None:
    seen: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        seen.append(str(graph.graph))
        return graph

    program, options = Program(source(replace(CASE, calls=()))), {"compiled_as": way} if way else {}
    module = program.module(training=True)
    with settings.apply({**options, "compiled_autograd": True}):
        call = settings.compile_module(module, backend=backend)
        execute(call, module, program.calls(module), training=True)
    graphs = [text for text in seen if "linear" in text], [text for text in seen if "accumulate_grad" in text]
    assert all(graphs)
    assert settings.is_compiled_plainly()
    torch._dynamo.reset()


def test_a_case_that_is_cut_to_its_parameters_is_no_case() -> None:
    """Nothing is left for a hook before forward to look at."""
    parameters = tuple(item for item in CASE.inputs if item.parameter)
    hooked = replace(CASE, inputs=parameters, ops=(make_op("out", "mul", ["w", "v"], {}),), calls=())
    assert prune_if_valid(replace(hooked, setup=(Change("pre_hook"),))) is None
