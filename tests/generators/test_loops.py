"""Loops whose steps hand values to the next step: two texts with one meaning, rules, pruning, and the drawn ones."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from corpus.casefile import dumps, loads
from corpus.passes.program import simplify_regions
from generators.errors import CaseError
from generators.program.case import Carry, Case, Input, Region, Values
from generators.program.edits import skip_op
from generators.program.emit import list_unplain, source
from generators.program.features import features
from generators.program.ops import make_op
from generators.program.regions import call_directly
from generators.program.sizes import Size
from generators.program.type_check import check, prune
from generators.sampling.parts import WithParts
from tests.generators.plain import close, in_float64

BATCH, WIDE, STEP = ((*map(Size.of, names),) for names in (("B", "D"), ("T", "B", "D"), ("D", "D")))
LOOP = Region(
    "scan",
    ("mixed", "new", "gate", "kept", "last", "old"),
    "T",
    carries=(Carry("h", "last"), Carry("c", "old")),
    reverse=True,
)
CASE = Case(
    dims=(("T", 4), ("B", 2), ("D", 3)),
    inputs=(
        Input("x", WIDE, "float32"),
        Input("h", BATCH, "float32", Values(seed=1)),
        Input("c", BATCH, "float32", Values(seed=2), parameter=True),
        Input("w", STEP, "float32", Values(seed=3), parameter=True),
    ),
    ops=(
        make_op("mixed", "matmul", ["h", "w"], {}),
        make_op("new", "add", ["mixed", "x"], {}),
        make_op("gate", "sigmoid", ["new"], {}),
        make_op("kept", "mul", ["gate", "c"], {}),
        make_op("last", "select", ["kept"], {"dim": 0, "index": 0}),
        make_op("old", "clone", ["h"], {}),
        make_op("out", "mul", ["new"], {"other": 2.0}),
    ),
    returns=("out", "last", "kept"),
    mode="training",
    regions=(LOOP,),
)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_and_loops_are_the_recurrence_that_a_person_writes(reverse: bool) -> None:
    case = replace(CASE, regions=(replace(LOOP, reverse=reverse),))
    scope: dict[str, object] = {}
    exec(source(case), scope)
    module, (x, h) = scope["Module"]().double(), (given.double() for given in scope["inputs"]())  # type: ignore[operator]
    state, c, found = h, module.c, []
    for row in x.flip(0) if reverse else x:
        new = state @ module.w + row
        kept = new.sigmoid() * c
        state, c = kept, state
        found.append((2 * new, kept))
    out, kept = (torch.stack(rows[::-1] if reverse else rows) for rows in zip(*found, strict=True))
    loop = call_directly(case, "scan")
    assert list_unplain(loop) == () and "scan(" not in source(loop)
    texts = [source(case), source(case, plain=True), source(loop)]
    runs = [in_float64(text, training=True) for text in texts]
    for run in runs:
        assert all(map(close, run.outputs, (out, state, kept)))
        pairs = zip(run.gradients, runs[1].gradients, strict=True)
        assert all(one is not None and other is not None and close(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"carries": (Carry("h", "out"),)}, "of its own from before the loop"),
        ({"carries": (Carry("mixed", "last"),)}, "of its own from before the loop"),
        ({"carries": (Carry("h", "last"), Carry("c", "last"))}, "of its own from before the loop"),
        ({"carries": (Carry("h", "last"), Carry("w", "old"))}, "'old' has another type than 'w'"),
        ({"carries": (Carry("h", "kept"),)}, "'kept' has another type than 'h'"),
        ({"carries": (), "ops": LOOP.ops[:-1]}, "scan returns memory of another value"),
        ({"kind": "map"}, "map has no carries and no direction"),
    ],
)
def test_steps_hand_on_values_of_one_type(changes: dict[str, object], error: str) -> None:
    with pytest.raises(CaseError, match=error):
        check(replace(CASE, regions=(replace(LOOP, **changes),)))  # type: ignore[arg-type]


def test_files_pruning_and_shrinking_know_what_steps_hand_on() -> None:
    assert loads(dumps(CASE)) == CASE
    assert CASE.id != replace(CASE, regions=(replace(LOOP, reverse=False),)).id
    # The second carry comes from the first one, which the first result needs.
    assert prune(replace(CASE, returns=("out",))).regions == (LOOP,)
    # Nothing needs the second carry if no later step reads it.
    unread = replace(CASE, ops=(*CASE.ops[:3], make_op("kept", "mul", ["gate", "h"], {}), *CASE.ops[4:]))
    (kept,) = prune(unread).regions
    assert kept.carries == LOOP.carries[:1] and "old" not in kept.ops
    # An operation that is left out hands on its argument.
    assert skip_op(CASE, CASE.ops[4]).regions[0].carries[0] == Carry("h", "kept")
    assert "region:scan:carries" in features(CASE)
    simpler = [one.regions[0] for one in simplify_regions(CASE)]
    assert replace(LOOP, reverse=False) in simpler and replace(LOOP, carries=LOOP.carries[1:]) in simpler


@pytest.mark.samples
def test_loops_with_carries_are_drawn_in_all_their_forms() -> None:
    parts, found = WithParts(["carries"]), Counter[object]()
    for index in range(80):
        case = parts.sample(3, index)
        check(case)
        loops = [region for region in case.regions if region.carries]
        found.update({len(loops) > 1 and "chained", case.training and "trained"})
        found.update({word for region in loops for word in (region.kind, region.reverse, len(region.carries))})
    assert min(found[word] for word in ("chained", "trained", "scan", "loop", True, 1, 2, 3)) > 2
