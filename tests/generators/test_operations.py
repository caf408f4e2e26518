"""Every row of the table of operations: eager gives what its type says, a file keeps it, and right results pass."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from corpus.casefile import dumps, loads
from corpus.passes.program import drop_attributes
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question, ask_or_raise
from generators.errors import CaseError
from generators.program.case import Case
from generators.program.edits import change_dtype, prune_if_valid
from generators.program.indices import find_undefined_writes
from generators.program.ops import OPS
from generators.program.ops.spec import Kind
from generators.program.type_check import check, is_valid, prune, types_of
from generators.sampling.operations import DRAWN, OWN_WRITERS
from generators.sampling.parts import WithParts, list_parts
from tests.corpus.test_mistakes import GROUPS
from tests.generators.test_sample import has_its_types

EXAMPLES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("operations.yaml").read_text())
GIVEN = GROUPS["operations"]["text"].replace("- {name: out, op: clone, args: [x]}\nreturns: [out]\n", "")
UNIMPLEMENTED = ("avg_pool3d", "interpolate")
"""Operations that the CPU does not have in every dtype."""
samples = pytest.mark.samples


def program(rows: list[str], mode: str = "inference") -> Case:
    """A program that returns the results of these operations. Each that writes has a target of its own."""
    lines = []
    for number, row in enumerate(rows):
        if OPS[row.partition(",")[0]].writes or "form: in_place" in row:
            target = re.findall(r'args: \[("?\w+"?)', row)[0]
            lines.append(f"- {{name: own{number}, op: clone, args: [{target}]}}")
            row = row.replace(f"args: [{target}", f"args: [own{number}", 1)  # noqa: PLW2901
        lines.append(f"- {{name: out{number}, op: {row}}}")
    returns = ", ".join(f"out{number}" for number in range(len(rows)))
    return prune(replace(loads("\n".join([GIVEN.rstrip(), *lines, f"returns: [{returns}]", ""])), mode=mode))


@pytest.mark.parametrize("row", [row for rows in EXAMPLES.values() for row in rows])
def test_an_operation_gives_in_eager_what_its_type_says(row: str) -> None:
    plain = program([row])
    # Autocast casts few results of float32, and some of what is in its own dtype.
    autocast = [replace(case, autocast="bfloat16") for case in (plain, change_dtype(plain, ["float32"], "bfloat16"))]
    assert has_its_types(plain)
    for case in filter(is_valid, autocast):
        try:
            assert has_its_types(case)
        except NotImplementedError:
            assert plain.ops[-1].kind in UNIMPLEMENTED
    assert loads(dumps(plain)) == plain


@pytest.mark.worker
@samples
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("group", EXAMPLES)
def test_right_results_of_operations_are_accepted(shared: Evaluator, group: str, mode: str) -> None:
    result = ask_or_raise(shared, Question(program(EXAMPLES[group], mode), ("passes",)))
    assert not result.verdict.is_finding, result


@pytest.mark.parametrize("kind", OPS)
def test_a_row_is_well_formed_and_has_programs(kind: str) -> None:
    attributes = OPS[kind].attributes
    assert attributes.keys().isdisjoint({"name", "op", "args"})  # keys of their own in case files
    for one in attributes.values():
        assert one.default is None or not one.required
        assert one.kind is not Kind.WORD or one.default in (None, *one.words)
    by_hand = [row for rows in EXAMPLES.values() for row in rows if row.partition(",")[0] == kind]
    others = ("sdpa", "flex_attention", "multihead_attention", "transformer_encoder_layer", "matmul", "softmax")
    assert by_hand or kind in (*DRAWN, *OWN_WRITERS, *others)


@samples
@pytest.mark.filterwarnings("ignore:(var|std)\\(\\). degrees of freedom")
@pytest.mark.parametrize("kind", DRAWN)
def test_drawn_programs_have_the_operation_run_and_become_simpler(kind: str) -> None:
    case = WithParts([kind]).sample(31, DRAWN.index(kind))
    assert kind in list_parts(case)
    assert loads(dumps(case)) == case
    try:
        assert has_its_types(case)
    except NotImplementedError:
        assert kind in UNIMPLEMENTED
    assert all(map(check, filter(None, map(prune_if_valid, drop_attributes(case)))))


@samples
@pytest.mark.parametrize("kind", ["scatter", "scatter_", "index_copy_", "index_put_"])
def test_torch_defines_what_drawn_programs_write(kind: str) -> None:
    tensors = 0
    for index in range(12):
        case = WithParts([kind]).sample(7, index)
        assert not find_undefined_writes(case, types_of(case))
        tensors += any(op.kind == kind and len(op.args) > 2 for op in case.ops)
    assert tensors > 3


@samples
@pytest.mark.parametrize("part", ["scan", "jvp", "forward_hook", "index_put_", "flex_attention", "regions"])
def test_every_program_has_the_part_or_a_part_of_the_group(part: str) -> None:
    found = [list_parts(WithParts([part]).sample(3, index)) for index in range(5)]
    assert all(one - {*DRAWN} if part == "regions" else part in one for one in found)


@samples
def test_a_drawn_mutation_is_in_each_program() -> None:
    drawn = {name: [WithParts([name]).sample(5, index) for index in range(12)] for name in ("masks", "autocast_within")}
    assert all(any(op.kind == "dropout" for op in case.ops) for case in drawn["masks"])
    assert all(case.autocast for case in drawn["autocast_within"])


def test_autocast_is_refused_where_the_dtype_would_depend_on_the_contraction() -> None:
    with pytest.raises(CaseError):
        check(replace(program(["einsum, args: [x, weight, row], equation: bsd,sd,d->bd"]), autocast="bfloat16"))
    summed = replace(program(['einsum, args: [x, x], equation: "bsd,bsd->bs"']), autocast="bfloat16")
    assert has_its_types(summed)
    with pytest.raises(CaseError):  # elements are multiplied where only one is summed
        check(replace(summed, dims=tuple((name, 1 if name == "D" else size) for name, size in summed.dims)))
