"""Sampled cases: the same from a seed everywhere, well typed, and accepted by eager as their types say."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest
import torch

from corpus import casefile
from generators.program.attention_stub import emit_attention_stub, list_calls
from generators.program.case import MODES, Case
from generators.program.edits import map_inputs
from generators.program.emit import source
from generators.program.features import CALL_STATES, features
from generators.program.settings import list_available
from generators.program.simplicity import sort_key
from generators.program.type_check import check
from generators.program.values import FLOATS, LAYOUTS
from generators.program.writes import is_written
from generators.sampling.choices import Choices
from generators.sampling.mutations import MUTATIONS
from generators.sampling.sample import Limits, sample
from generators.sampling.settings import draw_settings
from generators.sampling.shards import add_shards
from generators.sampling.writes import WRITES
from tests.check.in_process import run_case

pytestmark = pytest.mark.samples


@cache
def plain_cases() -> list[Case]:
    return [sample(5, i) for i in range(600)]


PRINT_IDS = """
from generators.sampling.choices import Choices
from generators.sampling.sample import sample
print(*(sample(7, i, attention_only=i % 2 == 0).id for i in range(60)))
"""


def run_eager(case: Case) -> tuple[torch.Tensor, ...]:
    """The result of the first call that the case's own text makes."""
    scope: dict[str, Any] = {}
    exec(source(case), scope)
    module = scope["Module"]().train(case.training)
    with closing(scope["calls"](module) if "calls" in scope else (given for given in [scope["inputs"]()])) as calls:
        given = next(calls)
        with torch.no_grad():
            found = module(*given)
    return found if isinstance(found, tuple) else (found,)


def has_its_types(case: Case) -> bool:
    """Whether eager gives the types of the program; False where it refuses the case."""
    types = check(case)
    try:
        found = run_eager(case)
    except NotImplementedError:
        raise
    except (RuntimeError, IndexError):
        return False
    for name, tensor in zip(case.returns, found, strict=True):
        stated = types[name].sizes(case.sizes), f"torch.{types[name].dtype}"
        assert (tuple(tensor.shape), str(tensor.dtype)) == stated, source(case)
    return True


def test_the_same_seed_gives_the_same_cases_in_every_process() -> None:
    def ids(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", PRINT_IDS], env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = ids("1")
    assert first == ids("2")
    assert len(set(first.split())) > 55


@pytest.mark.parametrize(("attention_only", "count"), [(False, 120), (True, 60)])
def test_eager_accepts_nearly_all_and_gives_the_types_the_program_says(attention_only: bool, count: int) -> None:
    cases = (sample(21, index, attention_only=attention_only) for index in range(count))
    assert sum(map(has_its_types, cases)) >= 0.95 * count


def test_eager_accepts_nearly_all_that_write() -> None:
    def has_run(case: Case) -> bool:
        try:
            run_case(case)
        except (RuntimeError, IndexError):  # an index beyond a cache that a later call made shorter
            return False
        return True

    inserted = (MUTATIONS["writes"].draw(sample(31, index), Choices(f"{index}")) for index in range(150))
    cases = [case for case in inserted if is_written(case)]
    assert len(cases) > 125
    assert sum(map(has_run, cases)) > 0.95 * len(cases)
    kinds = {op.kind for case in cases for op in case.ops}
    assert WRITES.keys() <= kinds


def test_every_part_of_the_mix_is_drawn() -> None:
    cases = plain_cases()
    kinds = {op.kind for case in cases for op in case.ops}
    assert {
        "matmul",
        "bmm",
        "einsum",
        "sdpa",
        "softmax",
        "log_softmax",
        "logsumexp",
        "exp",
        "masked_fill",
        "where",
        "dropout",
        "embedding",
        "layer_norm",
        "rms_norm",
        "linear",
        "gelu",
        "repeat_interleave",
        "expand",
        "chunk",
        "unbind",
        "permute",
        "mT",
        "tril",
        "triu",
    } <= kinds
    assert {i.dtype for case in cases for i in case.inputs} >= {"float32", "bfloat16", "float16", "bool", "int64"}
    assert {case.mode for case in cases} == {*MODES}
    assert any(case.dynamic for case in cases)
    assert any(op.attr("form") == "in_place" for case in cases for op in case.ops)
    assert sum(1 for case in cases if len(set(case.sizes.values())) < len(case.dims)) > len(cases) / 3


def test_a_campaign_of_kernels_has_all_that_a_contract_can_say() -> None:
    cases = [sample(5, i, attention_only=True) for i in range(500)]
    said = Counter(
        word
        for case in cases
        for c in case.contracts
        for word in (
            c.causal,
            *(f for f in ("softcap", "alibi", "sinks", "window", "bias", "mask") if getattr(c, f) is not None),
        )
    )
    for word in ("softcap", "alibi", "sinks", "window", "bottom_right"):
        assert 35 <= said[word] <= 95, said
    assert min(said["top_left"], said["mask"], said["bias"]) > 40, said
    layouts = Counter(c.layout for case in cases for c in case.contracts)
    assert min(layouts["bshd"], 2 * layouts["bsd"]) > 40, layouts
    assert 200 < sum(case.training for case in cases) < 300
    assert all(emit_attention_stub(case) is not None for case in cases)
    lengths = {case.sizes.get("S") for case in cases}
    assert lengths >= {1, 63, 64, 65, 127, 128, 129, 130}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_drawn_and_kept_by_files(name: str) -> None:
    drawn = [(case, MUTATIONS[name].draw(case, Choices(case.id))) for case in plain_cases()[:60]]
    changed = [new for old, new in drawn if new != old]
    assert changed
    for case in changed:
        check(case)
        assert casefile.loads(casefile.dumps(case)).id == case.id  # a number may be NaN


@pytest.mark.parametrize("attention_only", [False, True])
def test_states_of_calls_are_drawn(attention_only: bool) -> None:
    cases = [sample(3, i, attention_only=attention_only) for i in range(250)]
    words = Counter(word for case in cases for word in features(case) & CALL_STATES)
    words["expanded"] = sum(item.layout == "expanded" for case in cases for item in case.inputs)
    words["some"] = sum(len({item.requires_grad for item in case.inputs if item.dtype in FLOATS}) > 1 for case in cases)
    assert all(words[word] for word in (*CALL_STATES, "expanded", "some")), words


FLAG_GEMS = Limits(
    lambda call: (
        call.dtype != "float32"
        and {16, 32, 64, 128}.issuperset([call.shapes[0][3]])
        and call.shapes[0][3] == call.shapes[2][3]
        and call.options.keys() <= {"mask", "causal"}
        and not call.training
    )
)
WIDE = Limits(lambda call: call.training and call.shapes[0][3] in (192, 256), head_dims=(192, 256))
SMALL = Limits(lambda call: prod(call.shapes[0][:3]) * call.shapes[1][2] <= 64 and not call.options)


@pytest.mark.parametrize("limits", [FLAG_GEMS, WIDE, SMALL])
def test_cases_are_drawn_within_limits(limits: Limits) -> None:
    cases = [sample(8, index, attention_only=True, limits=limits) for index in range(25)]
    calls = [call for case in cases for call in list_calls(case)]
    assert len(calls) >= 25 and all(map(limits.accepts, calls))
    assert len({call.shapes for call in calls}) > 20
    assert cases[7] == sample(8, 7, attention_only=True, limits=limits)


@pytest.mark.samples
def test_within_limits_all_else_varies() -> None:
    cases = [sample(9, index, attention_only=True, limits=FLAG_GEMS) for index in range(150)]
    forms = Counter(form for case in cases for call in list_calls(case) for form in call.forms)
    assert {*LAYOUTS} - {"channels_last"} <= forms.keys()  # no attention's
    assert {"axes:bhsd", "axes:bshd", "axes:bsd"} <= forms.keys()
    assert sum(form.startswith("scores:") for form in forms) > 8
    values = {item.values.kind for case in cases for item in case.inputs}
    assert values >= {"normal", "outliers", "integers", "one_row", "random", "padding", "empty_row", "causal"}


def test_limits_that_nothing_meets_end() -> None:
    assert emit_attention_stub(sample(8, 0, attention_only=True, limits=Limits(lambda call: False))) is not None


def test_what_newer_models_add_is_seldom_in_an_ordinary_campaign() -> None:
    contracts = [c for case in plain_cases() for c in case.contracts]
    new = sum(bool(c.softcap or c.alibi or c.sinks or c.window or c.causal == "bottom_right") for c in contracts)
    assert 0.03 < new / len(contracts) < 0.11


def test_a_size_of_0_is_drawn_of_given_families_too() -> None:
    cases = [sample(5, i, family="bert") for i in range(500)]
    assert 1 <= sum(0 in case.sizes.values() for case in cases) <= 12


def test_masks_ask_for_gradients_seldom_and_only_in_training() -> None:
    """A rewrite in training leaves a mask that wants a gradient alone, and models have none."""
    cases = [
        sample(6, i, family="bert", dtype="float32", mode=mode)
        for mode in ("training", "inference")
        for i in range(150)
    ]
    cut_off: Counter[tuple[str, bool]] = Counter()
    for case in cases:
        detached = {op.args[0] for op in case.ops if op.kind == "detach"}
        for item in case.inputs:
            if item.name.startswith("mask") and item.dtype == "float32":
                cut_off[case.mode, item.name in detached] += 1
    assert cut_off["training", True] > cut_off["training", False] > 5
    assert cut_off["inference", False] > 50 and not cut_off["inference", True]


def test_only_for_cuda_flex_attention_is_drawn_with_gradients_and_other_blocks() -> None:
    found = {
        device: [
            case
            for index in range(60)
            for case in [sample(5, index, family="flex", device=device)]
            if any(op.kind == "flex_attention" for op in case.ops) and not case.calls
        ]
        for device in ("cpu", "cuda")
    }
    assert {device for device, cases in found.items() if any(case.training for case in cases)} == {"cuda"}
    assert any(op.attr("block") for case in found["cuda"] for op in case.ops)
    assert min(case.sizes[name] for case in found["cuda"] for name in "DV") >= 16


@pytest.mark.samples
def test_settings_that_split_sums_meet_cases_of_one_row() -> None:
    """Only there does Inductor's C++ sum in several threads."""
    available = list_available(torch.__version__, "cpu")
    threads = {name: available[name] for name in ("cpp.threads", "cpp.min_chunk_size")}
    drawn = [draw_settings(case, Choices(case.id), threads, share=1.0) for case in plain_cases()[:100]]
    single = [case for case in drawn if dict(case.dims).get("B") == dict(case.dims).get("S") == 1]
    assert len(single) > 30
    for case in single:
        check(case)


def test_shards_are_axes_of_inputs_that_a_case_file_keeps() -> None:
    drawn = [add_shards(case, Choices(case.id)) for case in plain_cases()[:100]]
    sharded = [case for case in drawn if any(item.shard is not None for item in case.inputs)]
    assert len(sharded) > 80
    for case in sharded:
        check(case)
        assert casefile.loads(casefile.dumps(case)) == case
        whole = map_inputs(case, lambda item: replace(item, shard=None))
        assert whole.id != case.id
        assert sort_key(whole) < sort_key(case)


@pytest.mark.samples
def test_integers_of_positions_are_such_that_eager_takes() -> None:
    kinds: Counter[str] = Counter()
    n_alone = 0
    for index in range(40):
        base = sample(5, index, mode="inference")
        case = MUTATIONS["integers"].draw(base, Choices(str(index)))
        added = {op.kind for op in case.ops if op not in base.ops}
        n_alone += len(added) > 0 and set(base.ops).isdisjoint(case.ops)
        kinds.update(added)
        if added and not (case.calls or case.regions):
            run_eager(case)
    assert kinds["arange"] > 10 and kinds["scatter_reduce"] > 2 and kinds["mul"] > 5
    assert 20 < n_alone < 35


@pytest.mark.samples
def test_strided_reads_stay_within_the_memory_that_eager_gives() -> None:
    steps: Counter[str] = Counter()
    for index in range(40):
        case = MUTATIONS["as_strided"].draw(sample(6, index, mode="inference"), Choices(str(index)))
        for read in (op for op in case.ops if op.kind == "as_strided"):
            steps[next((op.kind for op in case.ops if op.name == read.args[0]), "input")] += 1
            if not case.calls:
                run_eager(case)
    assert steps.total() > 30 and len(steps) > 4


def test_some_cases_return_a_value_twice_and_eager_gives_it_twice() -> None:
    found = [case for case in plain_cases() if "returns:twice" in features(case)]
    assert found
    for case in found:
        assert casefile.loads(casefile.dumps(case)) == case
        assert has_its_types(case)
