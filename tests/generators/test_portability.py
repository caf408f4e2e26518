"""Cases for compilers of inference programs: pure when they run, with every form drawn, and told from others."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from corpus.casefile import dumps, loads
from fuzz.check.run.program import Program
from generators.errors import UserError
from generators.program.case import Case, Earlier, LaterCall
from generators.program.emit import source
from generators.program.portability import OBSTACLES, find_obstacle
from generators.program.sizes import ONE
from generators.program.type_check import types_of
from generators.program.values import category
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.parts import WithParts, list_parts
from generators.sampling.products import write_masked_attention
from generators.sampling.sample import sample
from tests.generators.test_sample import has_its_types, run_eager
from tests.test_tables import read_section

pytestmark = pytest.mark.samples
ABLE = ("dynamic",)


@cache
def portable_cases() -> list[Case]:
    return [sample(5, index, abilities=ABLE) for index in range(500)]


def is_pure(case: Case) -> bool | None:
    """Whether two calls of one module give the same numbers and leave arguments, parameters and buffers as they were.

    None if eager refuses the case.
    """
    program = Program(source(case))
    module = program.module(training=False)
    given, before = program.inputs(), program.inputs()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        with torch.no_grad():
            first, second = (module(*given) for _ in range(2))
    except (RuntimeError, TypeError, IndexError):
        return None
    finally:
        program.close()
    pairs = [*zip(given, before, strict=True), *((module.state_dict()[name], value) for name, value in state.items())]
    pairs += [(first, second)] if isinstance(first, torch.Tensor) else zip(first, second, strict=True)
    return all(torch.equal(left.nan_to_num(), right.nan_to_num()) for left, right in pairs)


def test_drawn_cases_are_pure_and_keep_their_types() -> None:
    ran = [is_pure(case) for case in portable_cases()[:80]]
    assert False not in ran
    assert ran.count(None) <= 2
    for case in portable_cases()[:30]:
        assert loads(dumps(case)) == case
        assert not find_obstacle(case, ABLE)
        assert case == sample(5, portable_cases().index(case), abilities=ABLE)
    assert sum(map(has_its_types, [case for case in portable_cases()[80:140] if not case.regions])) > 50


def test_cases_without_an_obstacle_are_pure_and_of_others_some_are_not() -> None:
    cases = [sample(6, index, mode="inference") for index in range(120)]
    assert False not in {is_pure(case) for case in cases if not find_obstacle(case)}
    assert any(is_pure(case) is False for case in cases if find_obstacle(case) in ("writes", "random"))


def test_every_obstacle_is_met_and_an_ability_lifts_it() -> None:
    plain = replace(next(case for case in portable_cases() if not case.varies and not case.regions), contracts=())
    met = {
        "training": replace(plain, mode="training"),
        "calls": replace(plain, calls=(LaterCall(under="no_grad"),)),
        "earlier": replace(plain, before=(Earlier(plain),)),
        "state": replace(plain, calls=(LaterCall(),)),
        "sizes": replace(plain, dynamic=True),
        "autocast": replace(plain, autocast="bfloat16"),
        "flex": sample(1, 0, family="flex", mode="inference"),
        "strides": WithParts(["as_strided"]).sample(1, 0, mode="inference"),
        "regions": WithParts(["scan"]).sample(1, 0, mode="inference"),
        "numbers": WithParts(["numbers"]).sample(1, 0, mode="inference"),
        "changes": next(case for index in range(400) if (case := sample(2, index)).setup),
    }
    drawn = [sample(7, index, mode="inference") for index in range(150)]
    met |= {name: next(case for case in drawn if find_obstacle(case) == name) for name in ("random", "writes")}
    assert not find_obstacle(plain)
    assert met.keys() == OBSTACLES.keys() <= read_section("Compilers of inference programs")
    for name, case in met.items():
        assert OBSTACLES[name].is_met(case), name
        ability = OBSTACLES[name].ability
        assert not ability or find_obstacle(case, [ability]) != name


def test_every_form_is_drawn() -> None:
    cases = portable_cases()
    found: Counter[str] = Counter()
    for case in cases:
        types = types_of(case)
        found.update({op.kind for op in case.ops})
        found.update(_list_pairs(case))
        found.update({f"size {size}" for size in case.sizes.values() if size < 2})
        for op in case.ops:
            found.update(f"{op.kind} {name}" for name, _ in op.attrs)
            dtypes = [types[name].dtype for name in op.args]
            if op.kind in ("add", "mul", "sub", "floor_divide", "remainder", "shift_right", "sum") and dtypes:
                found.update([f"{op.kind} of integers"] if category(dtypes[0]) == 1 else [])
                found.update([f"{op.kind} of {dtypes[0]}"])
            if op.kind == "sdpa" and op.attr("is_causal"):
                q, k = (types[name].sizes(case.sizes)[-2] for name in op.args[:2])
                found.update([f"causal {(q > k) - (q < k)}"])
            if op.kind == "sdpa" and len(op.args) > 3:
                found.update([f"mask {types[op.args[3]].rank}"])
        found.update(f"values {item.values.kind}" for item in case.inputs)
        found["later sizes"] += bool(case.calls)
    few = {word: found[word] for word in _WANTED if not found[word]}
    assert not few, sorted(few.items())
    assert 0.08 < found["later sizes"] / len(cases) < 0.2


def _list_pairs(case: Case) -> set[str]:
    sizes = case.sizes
    return {f"{one}={two}" for one in sizes for two in sizes if one < two and sizes[one] == sizes[two] > 1}


_WANTED = (
    *("B=H", "B=S", "B=T", "B=D", "H=S", "H=T", "D=H", "S=T", "D=S", "D=T", "D=V", "H=V", "S=V", "T=V", "size 0"),
    *("size 1", "causal -1", "causal 0", "causal 1", "mask 2", "mask 3", "mask 4", "values empty_row", "values zeros"),
    *(
        "sdpa enable_gqa",
        "values empty_row_mask",
        "values random_mask",
        "sdpa scale",
        "tanh",
        "repeat_interleave",
        "expand",
        "add alpha",
    ),
    *("baddbmm alpha", "baddbmm beta", "addmm alpha", "addmm beta", "mul of integers", "floor_divide of integers"),
    *("remainder of integers", "shift_right of integers", "add of uint8", "sum of bool", "logical_xor", "any", "all"),
    *("sum axes", "mean axes", "amax keepdim", "prod", "logsumexp", "var unbiased", "norm order", "cumsum", "argmax"),
    *(
        "sort",
        "topk",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "batch_norm",
        "gelu approximate",
        "interpolate",
        "gather",
    ),
    *("index_select", "scatter", "where", "clamp", "flip", "roll", "repeat", "conv1d", "conv2d", "copy_", "nan_to_num"),
)


def test_masks_have_every_broadcast_shape_and_rows_that_keep_nothing() -> None:
    found, empty = Counter[tuple[str, bool, tuple[bool, ...]]](), Counter[str]()
    for index in range(2500):
        b = Builder({"B": 2, "H": 3, "S": 4, "D": 5}, "float32", "inference")
        q = b.input("q", ("B", "H", "S", "D"))
        write_masked_attention(b, Choices(f"mask {index}"), q, [q])
        masks = [item for item in b.inputs if item.name in ("keep", "bias")]
        for item in masks:
            is_fused = any(op.kind == "sdpa" for op in b.ops)
            found[item.dtype, is_fused, tuple(size == ONE for size in item.shape)] += 1
            empty[item.values.kind] += 1
    shapes = [shape for rank in (2, 3, 4) for shape in itertools.product((True, False), repeat=rank)]
    wanted = set(itertools.product(("bool", "float32"), (True, False), shapes))
    assert wanted <= found.keys()
    assert min(empty[kind] for kind in ("empty_row", "empty_rows", "zeros", "empty_row_mask", "zeros_mask")) > 20


def test_what_no_query_sees_changes_nothing_in_eager() -> None:
    poisoned = Counter[str]()
    for index in range(400):
        b = Builder({"B": 2, "H": 3, "S": 4, "D": 5}, ("float32", "bfloat16", "float16")[index % 3], "inference")
        q = b.input("q", ("B", "H", "S", "D"))
        case = b.case([write_masked_attention(b, Choices(f"unseen {index}"), q, [q])], dynamic=False)
        unseen = {op.name: op for op in case.ops if op.kind == "masked_fill" and op.args[0] in ("k", "v")}
        plain = (replace(op, attrs=(("value", 0.0),)) if op.name in unseen else op for op in case.ops)
        for left, right in zip(run_eager(case), run_eager(replace(case, ops=tuple(plain))), strict=True):
            assert torch.equal(left.nan_to_num(), right.nan_to_num()), source(case)
        poisoned.update(op.args[0] for op in unseen.values())
        poisoned["fused"] += bool(unseen) and any(op.kind == "sdpa" for op in case.ops)
    assert min(poisoned[word] for word in ("k", "v", "fused")) > 10, poisoned


def test_parts_are_drawn_within_the_abilities_or_refused() -> None:
    for part in ("sort", "cond", "conv2d", "integers"):
        case = WithParts([part], ABLE).sample(3, 0)
        assert not find_obstacle(case, ABLE)
        assert part == "integers" or part in list_parts(case)
    assert not find_obstacle(WithParts(["regions"], ABLE).sample(3, 0), ABLE)
    for part in ("scan", "changes", "as_strided", "flex_attention"):
        with pytest.raises(UserError, match=part):
            WithParts([part], ABLE)
