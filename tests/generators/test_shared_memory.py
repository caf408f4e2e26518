"""Arguments that are parts of one tensor: a cache and its tail."""

from dataclasses import replace

import pytest
import torch

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus.casefile import dumps, loads
from corpus.passes.program import simplify_inputs
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.torch_internals import wrap
from generators.errors import CaseError
from generators.program.case import Case, Input, LaterCall, SharedSlice, Values
from generators.program.emit import source
from generators.program.ops import make_op
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid, prune
from generators.program.writes import find_owners
from generators.sampling.choices import Choices
from generators.sampling.neighbours import compare, list_near
from generators.sampling.parts import WithParts
from tests.check.in_process import run_case, run_subject

TAIL = Input("tail", (Size.of("B"), Size.of("S - 2")), "float32", part=SharedSlice("cache", dim=1, start=Size.of(2)))
CACHE = Input("cache", (Size.of("B"), Size.of("S")), "float32", Values(seed=3))
SHARED = Case(
    dims=(("B", 2), ("S", 5)),
    inputs=(CACHE, TAIL),
    ops=(make_op("written", "mul_", ["tail"], {"other": 3.0}), make_op("out", "neg", ["cache"], {})),
    returns=("out",),
)


def share_later(case: Case) -> Case:
    """The case whose arguments are apart in its first call."""
    assert TAIL.part is not None
    tail = replace(TAIL, part=replace(TAIL.part, copied=True))
    return replace(case, inputs=(CACHE, tail), calls=(LaterCall(shares=True), LaterCall()))


def with_input(item: Input, **changes: object) -> Case:
    changed = replace(item, **changes)  # type: ignore[arg-type]
    return replace(SHARED, inputs=tuple(changed if one is item else one for one in SHARED.inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arguments_share_memory_in_every_run(dtype: torch.dtype) -> None:
    program = Program(source(share_later(SHARED)))
    module = program.module(training=False)

    def shares(inputs: list[torch.Tensor]) -> bool:
        cache, tail = inputs
        return tail.data_ptr() == cache[:, 2:].data_ptr() and tail.stride() == cache[:, 2:].stride()

    calls = program.calls(module, lambda memory: memory.to(dtype, copy=True))
    assert [shares(inputs) for inputs in calls] == [False, True, False]
    found = run_case(share_later(SHARED), lambda memory: memory.to(dtype, copy=True))
    apart, shared, again = found.outputs.values()
    assert torch.equal(apart, again)
    assert torch.equal(shared[:, 2:], 3 * apart[:, 2:])
    assert torch.equal(shared[:, :2], apart[:, :2])
    seen = [(name.call, name.name) for name in found.mutated]
    assert seen == [(1, 1), (2, 0), (2, 1), (3, 1)], "the write is seen under both names"
    program.close()


def test_files_and_pruning_keep_parts() -> None:
    for case in (SHARED, share_later(SHARED)):
        check(case)
        assert loads(dumps(case)) == case
        assert prune(case) == case
    assert find_owners(SHARED)["written"] == "cache"
    assert find_owners(share_later(SHARED))["written"] == "tail"
    alone = prune(replace(SHARED, ops=SHARED.ops[:1], returns=("written",)))
    assert [item.name for item in alone.inputs] == ["cache", "tail"]
    assert SHARED.id != share_later(SHARED).id != with_input(TAIL, part=None).id


def test_a_copy_of_a_buffer_has_the_buffers_numbers_in_every_call() -> None:
    buffer = replace(CACHE, parameter=True, buffer=True)
    copied = replace(
        share_later(SHARED), inputs=(buffer, share_later(SHARED).inputs[1]), calls=(LaterCall(values="other"),)
    )
    program = Program(source(copied))
    module = program.module(training=False)
    assert all(torch.equal(tail, module.get_buffer("cache")[:, 2:]) for (tail,) in program.calls(module))


def test_shrinking_takes_parts_apart() -> None:
    simpler = [case for case in simplify_inputs(share_later(SHARED)) if is_valid(case)]
    parts = [{item.name: item.part for item in case.inputs}["tail"] for case in simpler]
    assert any(part is not None and not part.copied for part in parts)
    assert any(part is not None and part.start == Size.of(0) for part in parts)
    assert is_valid(with_input(TAIL, part=None))


def test_a_part_of_equal_sizes_is_the_argument_itself() -> None:
    case = with_input(TAIL, shape=CACHE.shape, part=SharedSlice("cache"))
    check(case)
    program = Program(source(case))
    first, second = program.inputs()
    assert first is second
    program.close()


def test_a_write_reads_no_overlapping_argument() -> None:
    head = replace(TAIL, name="head", part=SharedSlice("cache", dim=1))
    write = make_op("written", "copy_", ["tail", "head"], {})
    overlapping = replace(SHARED, inputs=(CACHE, TAIL, head), ops=(write, SHARED.ops[1]))
    with pytest.raises(CaseError, match="of which it also reads"):
        check(overlapping)


BUFFER, PARAMETER = (replace(CACHE, parameter=True, buffer=buffer) for buffer in (True, False))


def of_module(owner: Input) -> Case:
    """The case whose argument is a part of a buffer or parameter, by itself and in a second call."""
    return replace(SHARED, inputs=(owner, TAIL), calls=(LaterCall(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_argument_is_a_view_of_the_modules_own_memory(dtype: torch.dtype) -> None:
    program = Program(source(of_module(BUFFER)))
    module = program.module(training=False).to(dtype)
    convert = None if dtype == torch.float32 else lambda memory: memory.to(dtype, copy=True)
    for (tail,) in program.calls(module, convert):
        assert tail._base is module.get_buffer("cache"), "autograd knows of the view, as in a user's program"
        assert tail.storage_offset() == 2
    once, twice = execute(module, module, program.calls(module, convert), training=False).outputs.values()
    assert torch.equal(twice[:, 2:], 3 * once[:, 2:]), "the second call sees the write of the first"
    program.close()


def test_arguments_apart_keep_strides_and_the_tensor_that_is_sliced() -> None:
    case = replace(SHARED, calls=(LaterCall(apart=True),))
    check(case)
    program = Program(source(case))
    calls = list(program.calls(program.module(training=False)))
    assert [tail._base is cache for cache, tail in calls] == [True, False]
    assert len({tail.stride() for _, tail in calls}) == 1, "so that guards of strides let both pass"
    program.close()


def test_a_slice_of_a_parameter_has_its_gradient() -> None:
    case = replace(
        SHARED,
        mode="training",
        inputs=(PARAMETER, replace(TAIL, requires_grad=False)),
        ops=(make_op("out", "neg", ["tail"], {}),),
    )
    check(case)
    (gradient,) = run_case(case).gradients.values()
    assert not gradient[:, :2].any()
    assert gradient[:, 2:].all()
    written = replace(case, ops=SHARED.ops)
    with pytest.raises(CaseError, match="which needs a gradient"):
        check(written)


def test_parts_of_the_module_are_kept_and_made_simpler() -> None:
    for case in (of_module(BUFFER), of_module(PARAMETER), replace(SHARED, calls=(LaterCall(apart=True),))):
        check(case)
        assert loads(dumps(case)) == case
        assert prune(case) == case
    assert find_owners(of_module(BUFFER))["written"] == "cache"
    simpler = [case for case in simplify_inputs(of_module(BUFFER)) if is_valid(case)]
    assert any(case.parts_of_module == frozenset() and case.inputs[1].part for case in simpler), "of an argument"
    assert prune(replace(share_later(SHARED), ops=SHARED.ops[1:])).calls == (LaterCall(), LaterCall())


def test_drawn_arguments_are_parts_of_all_kinds_of_inputs() -> None:
    draw = WithParts(["shared_arguments"])
    seen = set()
    for index in range(60):
        case = draw.sample(5, index)
        inputs = {item.name: item for item in case.inputs}
        owners = [inputs[item.part.of] for item in case.inputs if item.part]
        seen |= {"buffer" if owner.is_buffer else "parameter" if owner.parameter else "argument" for owner in owners}
        seen |= {"apart" for call in case.calls if call.apart}
    assert seen == {"buffer", "parameter", "argument", "apart"}


def test_neighbours_move_parts_and_take_them_apart() -> None:
    near = [other for index in range(30) for other in list_near(SHARED, Choices(f"near:{index}"), 8)]
    parts = [(item.part, other.calls) for other in near for item in other.inputs if item.name == "tail" and item.part]
    assert any(part.start == Size.of(1) and not calls for part, calls in parts)
    assert any(part.copied and calls == (LaterCall(shares=True),) for part, calls in parts)
    assert any(not part.copied and calls == (LaterCall(apart=True),) for part, calls in parts)
    moved = next(other for other in near if other.inputs[1].part not in (None, TAIL.part) and not other.calls)
    assert compare(SHARED, moved) == ["tail elsewhere in the memory of cache"]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("defect", "case", "is_seen"),
    [
        ("overlap_missed", SHARED, True),
        ("overlap_missed", replace(of_module(BUFFER), calls=()), True),
        ("module_overlap_missed", SHARED, False),
        ("module_overlap_missed", replace(of_module(BUFFER), calls=()), True),
    ],
)
def test_overlaps_that_a_compiler_misses_are_seen(defect: str, case: Case, *, is_seen: bool) -> None:
    with wrap(*FUNCTIONS[defect]):
        assert run_subject(find("aot_eager"), text=source(case)).verdict.is_finding is is_seen
    assert not run_subject(find("aot_eager"), text=source(case)).verdict.is_finding
