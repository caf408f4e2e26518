"""The shrinker: its probes on predicates whose minimum is known, and what it makes of contracts."""

import random
from dataclasses import replace
from typing import Any

import pytest

from corpus.casefile import loads
from corpus.passes.contracts import Plain, simplify_contract, spell_plain
from corpus.passes.program import bypass, shrink_dims, start_later
from corpus.shrink import CONTRACT_PASSES, PASSES, Pass, shrink
from generators.program.attention_options import OPTIONS, Contract, Form
from generators.program.case import Case, Earlier, Input, Values
from generators.program.edits import prune_if_valid
from generators.program.emit import is_random, source
from generators.program.indices import find_undefined_writes
from generators.program.ops import make_op
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import types_of
from generators.sampling.sample import sample
from tests.generators.plain import agrees, by_contract, close, in_float64, overwrites
from tests.programs import program

PAIRS = 10


def chain() -> Case:
    """relu, neg, relu, neg... of one input."""
    names = ["x", *(f"v{i}" for i in range(2 * PAIRS))]
    ops = [make_op(name, ("relu", "neg")[i % 2], [names[i]], {}) for i, name in enumerate(names[1:])]
    return Case((("S", 3),), (Input("x", (Size.of("S"),), "float32"),), tuple(ops), (names[-1],))


def test_a_pass_goes_on_behind_the_candidate_that_it_accepted() -> None:
    probes = 0

    def keeps_every_relu(case: Case) -> bool:
        nonlocal probes
        probes += 1
        return sum(op.kind == "relu" for op in case.ops) == PAIRS

    smallest = shrink(chain(), keeps_every_relu, passes=[bypass], is_readable=False)[-1]
    assert [op.kind for op in smallest.ops] == ["relu"] * PAIRS
    # Each operation once, and the ones that stay once more in the smallest case. Starting over takes 65.
    assert probes <= 3 * PAIRS


def test_candidates_that_are_judged_at_once_give_the_same_cases() -> None:
    ahead: list[int] = []

    def keeps_every_relu(case: Case) -> bool:
        return sum(op.kind == "relu" for op in case.ops) == PAIRS

    plain = shrink(chain(), keeps_every_relu)
    assert plain == shrink(chain(), keeps_every_relu, look_ahead=lambda some: ahead.append(len(some)), at_once=3)
    assert max(ahead) == 3


def test_the_program_is_cut_at_its_first_wrong_value() -> None:
    asked: list[Case] = []

    def fails(case: Case) -> bool:
        asked.append(case)
        return any(op.kind == "neg" for op in case.ops)

    smallest = shrink(chain(), fails, is_readable=False, find_wrong=lambda every: every.returns[1])[-1]
    assert [op.kind for op in smallest.ops] == ["neg"]
    assert asked[0].inputs[0].name == asked[0].ops[0].args[0] == "v0" and len(asked[0].ops) == 1


def test_a_program_is_cut_to_its_last_operations_where_its_values_show_nothing() -> None:
    asked = 0

    def fails(case: Case) -> bool:
        nonlocal asked
        asked += 1
        return [op.kind for op in case.ops][-4:] == ["relu", "neg", "relu", "neg"]

    smallest = shrink(chain(), fails, passes=[start_later], is_readable=False, find_wrong=lambda every: None)[-1]
    assert (len(smallest.ops), asked) == (4, 4)  # the last 1, 2, 3 and 4 operations


@pytest.mark.parametrize("needed", [{"cpp.threads"}, {"cpp.simdlen", "freezing"}, set[str]()])
def test_settings_that_are_not_needed_go(needed: set[str]) -> None:
    case = replace(chain(), settings=(("cpp.simdlen", 1), ("cpp.threads", 4), ("freezing", True)))
    smallest = shrink(case, lambda case: needed <= {*dict(case.settings)})[-1]
    assert {*dict(smallest.settings)} == needed


def test_a_write_that_is_not_needed_goes_and_one_that_is_stays() -> None:
    text = program(
        "S: 3",
        {"x": "S", "state": "S; parameter: true, buffer: true"},
        "first = copy_ state x",
        "second = add_ first, other: 1.0",
        "y = relu second",
        "third = mul_ x, other: 2.0",
        returns="[y, third]",
    )
    case = loads(text)
    smallest = shrink(case, lambda case: any(op.kind == "add_" for op in case.ops))[-1]
    assert [op.kind for op in smallest.ops] == ["add_"]
    assert not any(item.buffer for item in smallest.inputs)


def attention(shape: str) -> Case:
    """Attention of one input, in place of q, k and v, with sizes of one letter."""
    ops = ("turned = transpose x", "product = matmul x turned", "weights = softmax product", "y = matmul weights x")
    return loads(program(f"{shape[0]}: 2", {"x": ", ".join(shape)}, *ops))


def shapes_of(case: Case) -> dict[str, list[str]]:
    return {item.name: [str(size) for size in item.shape] for item in case.inputs}


def test_a_readable_form_tells_heads_from_lengths() -> None:
    last = shrink(attention("BBBB"), lambda case: True, passes=[])[-1]
    assert shapes_of(last) == {"q": list("BHSD"), "k": list("BHTD"), "v": list("BHTV")}
    assert dict(last.dims) == {"B": 2, "H": 3, "S": 4, "T": 5, "D": 6, "V": 7}
    assert [op.name for op in last.ops] == ["kt", "scores", "probs", "out"]


def test_a_case_that_is_as_simple_and_readable_as_can_be_stays_itself() -> None:
    asked: list[str] = []

    def is_attention(case: Case) -> bool:
        asked.append(case.id)
        return len(case.ops) == 4 and all(len(item.shape) == 4 for item in case.inputs)

    smallest = shrink(attention("BBBB"), is_attention)[-1]
    asked.clear()
    again = shrink(smallest, is_attention)
    assert len(set(smallest.sizes.values())) == len(smallest.sizes) > 1
    assert again[-1].id == smallest.id and min(again, key=sort_key).id != smallest.id
    assert asked[-1] == smallest.id  # the caller learns of it


def test_sizes_that_must_be_equal_for_the_failure_keep_one_number() -> None:
    def is_square(case: Case) -> bool:
        _, heads, length, _ = case.inputs[0].type.sizes(case.sizes)
        return heads == length

    forms = shrink(attention("BBBB"), is_square, passes=[])
    assert all(map(is_square, forms))
    sizes = forms[-1].sizes
    assert shapes_of(forms[-1])["q"] == list("BHSD")
    assert sizes["H"] == sizes["S"]
    assert len({sizes[name] for name in "BSTDV"}) == 5


def test_one_tensor_stays_where_the_failure_needs_it() -> None:
    forms = shrink(attention("BBBB"), lambda case: len(case.inputs) == 1, passes=[])
    assert len(forms[-1].inputs) == 1
    assert shapes_of(forms[-1]) == {"x": ["B", "H", "S", "D"]}
    assert len(set(forms[-1].sizes.values())) == 4


def test_earlier_cases_shrink_too_and_those_that_are_not_needed_go() -> None:
    def has(case: Case, kind: str) -> bool:
        return any(op.kind == kind for op in case.ops)

    def fails(case: Case) -> bool:
        runs = sum(earlier.times for earlier in case.before if has(earlier.case, "neg"))
        return has(case, "relu") and runs >= 2

    smallest = shrink(replace(chain(), before=(Earlier(chain(), 5), Earlier(chain(), 4))), fails)[-1]
    assert [op.kind for op in smallest.ops] == ["relu"]
    assert [([op.kind for op in one.case.ops], one.times) for one in smallest.before] == [(["neg"], 2)]


def test_a_size_that_two_cases_share_shrinks_in_both() -> None:
    def has_equal_sizes(case: Case) -> bool:
        return {2, *case.sizes.values()} == {2, *case.before[0].case.sizes.values()} and "S" in case.sizes

    smallest = shrink(replace(chain(), before=(Earlier(chain()),)), has_equal_sizes)[-1]
    assert smallest.sizes["S"] == 2


def test_cases_that_differ_in_a_number_shrink_alike() -> None:
    def scale_by(number: float) -> Case:
        case = chain()
        scale = make_op("out", "mul", [case.returns[0]], {"other": number})
        return replace(case, ops=(*case.ops, scale), returns=("out",))

    def takes_one_for_the_other(case: Case) -> bool:
        if len(case.before) != 2 or case.before[1].case.ops[-1].kind != "exp":
            return False
        now, earlier = case, case.before[0].case
        alike = all(one == replace(other, attrs=one.attrs) for one, other in zip(now.ops, earlier.ops, strict=False))
        return alike and len(now.ops) == len(earlier.ops) and now.ops[-1].attrs != earlier.ops[-1].attrs

    other = chain()
    other = replace(other, ops=(*other.ops, make_op("out", "exp", [other.returns[0]], {})), returns=("out",))
    before = Earlier(scale_by(3.0)), Earlier(other)
    smallest = shrink(replace(scale_by(2.0), before=before), takes_one_for_the_other)[-1]
    alike, apart = (earlier.case for earlier in smallest.before)
    assert [[op.kind for op in one.ops] for one in (smallest, alike)] == [["mul"], ["mul"]]
    assert len(apart.ops) == 1


@pytest.mark.parametrize(("kind", "smallest"), [("permutation", "permutation"), ("tokens", "constant")])
def test_writes_that_torch_defines_stay_defined(kind: str, smallest: str) -> None:
    places = f"S; dtype: int64, values: {{kind: {kind}, seed: 0, scale: {3.0 if kind == 'tokens' else 1.0}}}"
    given = {"x": "S", "values": "S", "places": places}
    case = loads(program("S: 3", given, "out = scatter x places values"))
    assert bool(find_undefined_writes(case, types_of(case))) == (kind == "tokens")

    def keeps_the_write(case: Case) -> bool:
        return any(op.kind == "scatter" and len(op.args) == 3 for op in case.ops) and case.sizes["S"] == 3

    found = shrink(case, keeps_the_write)[-1]
    assert next(item for item in found.inputs if item.dtype == "int64").values.kind == smallest


CASES = [next(shrink_dims(sample(77, i, attention_only=True))) for i in range(30)]


def holds(case: Case) -> bool:
    contract = case.contracts[0]
    shown = replace(case, returns=tuple(dict.fromkeys([*contract.reads.values(), contract.output])))
    values = dict(zip(shown.returns, in_float64(source(shown), training=case.training).outputs, strict=True))
    return close(values[contract.output], by_contract(contract, values))


@pytest.mark.samples
@pytest.mark.parametrize("shrink", dict.fromkeys((*PASSES, *CONTRACT_PASSES)), ids=lambda p: p.__name__)
def test_a_contract_that_a_pass_keeps_still_holds(shrink: Pass) -> None:
    drawn = random.Random(0)
    for case in CASES:
        candidates = [
            c for c in map(prune_if_valid, shrink(case)) if c and c.contracts and not is_random(c) and not overwrites(c)
        ]
        for candidate in drawn.sample(candidates, min(len(candidates), 6)):
            try:
                kept = holds(candidate)
            except RuntimeError:
                continue  # eager refuses this candidate: it is no program that would be kept
            assert kept, f"{source(case)}\n{source(candidate)}\n{candidate.contracts}"


@pytest.mark.samples
def test_what_lies_outside_a_contract_goes_without_it() -> None:
    case = next(
        c
        for i in range(100)
        if len((c := sample(78, i, attention_only=True)).returns) == 1 and c.ops[-1].name != c.contracts[0].output
    )
    assert any(c and len(c.ops) < len(case.ops) and c.contracts for c in map(prune_if_valid, bypass(case)))


@pytest.mark.samples
def test_what_is_respelled_has_a_stand_in_that_gives_the_same_with_gradients() -> None:
    drawn, compared = random.Random(1), 0
    for case in CASES:
        candidates = [c for c in simplify_contract(case) if not is_random(c)]
        for candidate in drawn.sample(candidates, min(len(candidates), 4)):
            assert agrees(candidate), source(candidate)
            compared += candidate.training
    assert compared > 10


DIMS = (("B", 2), ("H", 3), ("S", 4), ("D", 5))
SHAPES = {Form.MASK: "SS", Form.BIAS: "SS", Form.PER_HEAD: "H"}
VALUES: dict[Form, Any] = {Form.CORNER: "top_left", Form.WINDOW: (1, 1), Form.NUMBER: 2.0, Form.PROBABILITY: 0.5}


def tensor(name: str, shape: str, dtype: str = "float32") -> Input:
    values = Values("random" if dtype == "bool" else "normal")
    return Input(name, tuple(map(Size.of, shape)), dtype, values)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_operations(name: str) -> None:
    bare = Plain(DIMS, {role: tensor(role, "BHSD") for role in "qkv"}, Contract("q", "k", "v", "out"))
    form = OPTIONS[name].form
    if OPTIONS[name].is_tensor:
        added = tensor(name, SHAPES[form], "bool" if form is Form.MASK else "float32")
        with_option = replace(bare, inputs={**bare.inputs, name: added})
    else:
        with_option = bare.change(**{name: VALUES[form]})
    without, spelled = spell_plain(bare), spell_plain(with_option)
    assert without is not None
    assert spelled is not None
    assert len(spelled.ops) > len(without.ops)
    assert getattr(spelled.contracts[0], name) != OPTIONS[name].absent
