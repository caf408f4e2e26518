"""A user's module becomes cases: bit for bit, with named sizes; calls that do not fit are named."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.entry import Entry, load_directory, save
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.importing import importer
from fuzz.importing.importer import Block, BlockFailed, ModuleImport, describe_gaps
from fuzz.protocol import Verdict
from generators.errors import UserError
from generators.program.case import Case
from generators.program.edits import describe_values, has_given, map_inputs, resize
from generators.program.emit import source
from generators.program.kept_places import side_of
from generators.program.regions import list_autocasts
from generators.sampling.neighbours import Neighbourhood

pytestmark = pytest.mark.worker

CONFIG = WorkerConfig(timeout=60, memory_mib=4096)
MODULES = "tests.importing.modules:"


def import_all(factory: str, *, keeps_values: bool = False) -> dict[str, Block]:
    with ModuleImport(CONFIG, f"tests.importing.{factory if ':' in factory else f'modules:{factory}'}") as module:
        return {block.name: block for block in module.import_blocks(keeps_values=keeps_values)}


@pytest.fixture(scope="module")
def stack() -> dict[str, Block]:
    return import_all("stack")


def require_case(block: Block) -> Case:
    assert block.case is not None
    return block.case


@pytest.mark.parametrize(
    "factory",
    [
        "block",
        "training",
        "plain",
        "cached",
        "cast",
        "casts",
        "counting",
        "operations",
        "rarer",
        "experts",
        "rotary",
        "varied",
    ],
)
def test_every_block_repeats_the_module_bit_for_bit(factory: str) -> None:
    """In training with gradients and dropout; with a buffer that is written, also in training."""
    blocks = import_all(factory)
    assert {name: (dict(block.missing), block.different) for name, block in blocks.items()} == dict.fromkeys(
        blocks, ({}, "")
    )
    assert all(
        require_case(block).training == (factory in ("training", "cached", "casts", "experts"))
        for block in blocks.values()
    )


def test_a_block_keeps_the_autocast_around_it() -> None:
    assert {block.case.autocast for block in import_all("cast").values() if block.case} == {"bfloat16"}


def test_numbers_of_forward_are_numbers_of_the_case_in_the_formulas_of_the_module() -> None:
    """A number that is a size stays a constant, and is told."""
    block = import_all("varied")["Varied"]
    case = require_case(block)
    used = {
        one.name: [(case.makers[use.op].kind, use.attribute, use.formula) for use in one.uses] for one in case.numbers
    }
    assert used == {
        "scale": [("mul", "other", "")],
        "power": [("div", "other", "next"), ("add", "other", "")],
        "least": [("clamp", "min", "negated")],
    }
    assert block.constants == ("groups",)


def test_an_autocast_within_the_module_is_a_region() -> None:
    case = require_case(import_all("casts")["Casts"])
    cast = list_autocasts(case)
    assert [cast[op.name] for op in case.ops if op.kind in ("linear", "matmul")] == [None, "bfloat16", None, "bfloat16"]


@pytest.mark.parametrize(
    ("factory", "missing"),
    [("special", {}), ("special_in_training", {"Tensor.round: within autograd.Function Rounded": 1})],
)
def test_functions_that_torch_calls_specially_are_told(factory: str, missing: dict[str, int]) -> None:
    block = import_all(factory)["Special"]
    assert set(block.within) == {"autograd.Function Rounded", "checkpoint", "nested_compile_region"}
    assert dict(block.missing) == missing
    assert "as plain operations: autograd.Function Rounded" in describe_gaps(block)


def test_a_module_whose_calls_all_are_made_by_transforms_is_a_block_without_a_case() -> None:
    block = import_all("transforms")["Transforms"]
    assert block.case is None and any("no torch function" in why for why in block.missing)


def test_each_run_begins_as_the_factory_left_the_module() -> None:
    """Neither its attributes nor its arguments drift."""
    [op] = [op for op in require_case(import_all("counting")["Counting"]).ops if op.kind == "sdpa"]
    assert op.attr("scale") == 1.0


def test_a_model_is_taken_apart_by_submodule(stack: dict[str, Block]) -> None:
    """Equal blocks are one."""
    assert set(stack) == {"Stack", "layers.0.attn", "layers.0.norm"}
    assert stack["layers.0.attn"].also == ("layers.1.attn",)
    assert set(stack["layers.0.norm"].also) == {"layers.0.norm2", "layers.1.norm", "layers.1.norm2"}


def test_sizes_are_named_dimensions(stack: dict[str, Block], shared: Evaluator) -> None:
    """Also heads and features, which the shapes of parameters tie together."""
    case = require_case(stack["layers.0.attn"])
    assert (case.sizes["B"], case.sizes["S"], case.sizes["D"]) == (2, 11, 32)
    other = resize(case, {name: 2 * size for name, size in case.dims})
    assert other is not None
    result = shared.ask(Question(other, ("passes",)))
    assert (result.rejected, [one.verdict.is_finding for one in result.results]) == (None, [False])


def test_a_mask_keeps_its_kind(stack: dict[str, Block]) -> None:
    [mask] = [item for item in require_case(stack["Stack"]).arguments if item.dtype == "bool"]
    assert (mask.name, mask.values.kind) == ("keep", "left_padding")


PADDED = {
    "ids": "left_padded_tokens",
    "attention_mask": "left_padding_zero_one",
    "position_ids": "left_padded_positions",
    "added": "causal+left_key_padding_mask",
}


@pytest.fixture(scope="module")
def padded() -> Case:
    return require_case(import_all("structured:padded")["Padded"])


def draw(case: Case) -> dict[str, torch.Tensor]:
    """The arguments of a case, by the text that it runs."""
    names: dict[str, Any] = {}
    exec(source(case), names)
    return dict(zip([item.name for item in case.arguments], names["inputs"](), strict=True))


def test_padding_of_masks_ids_and_positions_is_kept(padded: Case) -> None:
    """All have the same lengths, at any size; the padding id and whole rows of the minimum are kept."""
    assert {item.name: item.values.kind for item in padded.arguments} == PADDED
    dropped = 0
    for sizes in ({}, {"B": 5, "S": 13}):
        case = resize(padded, {**padded.sizes, **sizes})
        assert case is not None
        drawn = draw(case)
        keep = drawn["attention_mask"] == 1
        assert bool(keep[:, -1].all()) and bool((keep.long().diff() >= 0).all())
        assert torch.equal(drawn["ids"] != 1, keep)
        assert torch.equal(drawn["position_ids"], (keep.long().cumsum(-1) - 1).masked_fill(~keep, 1))
        seen = torch.ones(keep.shape[1], keep.shape[1], dtype=torch.bool).tril() & keep[:, None, None]
        lowest = torch.finfo(torch.float32).min
        assert torch.equal(drawn["added"], torch.zeros(seen.shape).masked_fill(~seen, lowest))
        dropped += int((~seen).all(-1).sum())
    assert dropped > 0


def test_neighbours_move_all_padding_to_a_side_together(padded: Case) -> None:
    """And have windows, rows without a key and full lengths, as valid cases."""
    neighbourhood = Neighbourhood({"Padded": padded})
    cases = [neighbourhood.sample(3, index) for index in range(300)]
    kinds = {item.values.kind for case in cases for item in case.arguments}
    assert kinds >= {
        "padding_zero_one",
        "ones_zero_one",
        "padded_tokens",
        "padded_positions",
        "causal+key_padding_mask",
    }
    added = " ".join(kind for kind in kinds if kind.endswith("_mask"))
    assert all(word in added for word in ("empty_rows", "window", "band", "blocks", "documents", "left_key_padding"))
    for case in (case for case in cases if not case.calls):
        values = {item.name: item.values for item in case.arguments}
        mask, ids = values["attention_mask"], values["ids"]
        if side_of(mask.kind) == side_of(ids.kind) == "right" and "empty" not in mask.kind:
            drawn = draw(case)
            assert torch.equal(drawn["attention_mask"] == 1, drawn["ids"] != 1)


def test_calls_that_do_not_fit_are_counted_and_their_results_are_inputs() -> None:
    block = import_all("left_out")["Running"]
    assert dict(block.missing) == {"sinc": 1}
    assert (block.different, len(block.reads)) == ("", 1)
    assert block.reads[0] in describe_gaps(block)
    assert [op.kind for op in require_case(block).ops if op.kind == "sdpa"] == ["sdpa"]


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("raises", "no such weights"),
        ("raises_later", r"decoder\.py:\d+: return \(x\.float"),
        ("gives_a_module", r"expected \(module, args\)"),
        ("not_a_function", "expected a function"),
        ("missing", "has no attribute"),
        ("exits", "exit"),
        ("a/path.py:block", "expected package"),
    ],
)
def test_a_bad_factory_is_refused_in_a_line(factory: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refused, ModuleImport(CONFIG, MODULES + factory):
        pass
    assert "\n" not in str(refused.value)
    assert MODULES + factory in str(refused.value)


def test_a_factory_that_hangs_is_ended() -> None:
    with pytest.raises(UserError, match="while loading"), ModuleImport(replace(CONFIG, timeout=1), MODULES + "hangs"):
        pass


def test_a_factory_may_print() -> None:
    assert "Block" in import_all("prints")


@pytest.fixture(scope="module")
def neighbourhood(stack: dict[str, Block]) -> Neighbourhood:
    return Neighbourhood({name: require_case(block) for name, block in stack.items()})


def test_neighbours_say_how_far_they_are(neighbourhood: Neighbourhood, stack: dict[str, Block]) -> None:
    """The blocks come first; then all changes are met."""
    cases = [neighbourhood.sample(5, index) for index in range(150)]
    assert cases[:3] == [block.case for block in stack.values()]
    described = [neighbourhood.describe(case) for case in cases]
    assert all(described)
    words = " ".join(described)
    assert all(
        word in words for word in ("bfloat16", "S = ", "padding", "dynamic", "training", "autocast", "later call")
    )


def test_neighbours_pass_where_nothing_is_wrong(neighbourhood: Neighbourhood, shared: Evaluator) -> None:
    results = [shared.ask(Question(neighbourhood.sample(7, index), ("passes",))) for index in range(4, 19, 3)]
    wrong = [
        one
        for result in results
        for one in result.results
        if one.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
    ]
    assert not wrong
    assert sum(result.rejected is not None for result in results) <= 1


def test_a_block_keeps_its_values(shared: Evaluator, tmp_path: Path) -> None:
    """Left padding, and rows of an additive mask that keep nothing: bit for bit, in training, from any directory."""
    with ModuleImport(CONFIG, "tests.importing.structured:masked_twice") as module:
        [part] = [part for part in module.choose_blocks() if not part.path]
        block, plain = module.import_block(part, keeps_values=True), module.import_block(part)
    assert describe_gaps(block) == ""
    case = require_case(block)
    tokens = next(item.values for item in case.inputs if item.name == "tokens")
    assert tokens.given is not None
    assert tokens.given.numbers == (*[1] * 20, *[0] * 7, *[1] * 13)
    assert all(item.values.given is not None for item in case.inputs)
    assert map_inputs(case, describe_values) == plain.case
    near = Neighbourhood({"padded": case})
    assert [has_given(near.sample(0, index)) for index in range(3)] == [True, False, False]  # the module itself first
    moved = shutil.move(save(Entry(case), tmp_path / "first").parent, tmp_path / "second")
    [entry] = load_directory(Path(moved)).values()
    result = shared.ask(Question(entry.case, ("passes",)))
    assert (result.rejected, [one.verdict.is_finding for one in result.results]) == (None, [False])


def test_values_that_are_too_large_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(importer, "MOST_NUMBERS", 0)
    with ModuleImport(CONFIG, "tests.importing.structured:masked_twice") as module:
        [kept] = [block for block in module.import_blocks(keeps_values=True) if block.name == "MaskedTwice"]
        monkeypatch.setattr(importer, "MOST_BYTES", 4 << 10)
        [drawn] = [block for block in module.import_blocks(keeps_values=True) if block.name == "MaskedTwice"]
        with pytest.raises(BlockFailed, match="its values take 0 MiB; at most 0 MiB are kept"):
            module.import_block(module.choose_blocks()[0], keeps_values=True)
    assert [has_given(require_case(block)) for block in (kept, drawn)] == [True, False]
    assert [item.values.given.numbers for item in require_case(kept).inputs if item.values.given] == [()] * 5


@pytest.mark.parametrize("factory", ["of_buffer", "of_parameter", "of_argument"])
@pytest.mark.parametrize("keeps_values", [False, True])
def test_arguments_share_memory_in_the_case_too(factory: str, *, keeps_values: bool) -> None:
    (block, *_) = import_all(f"shared_memory:{factory}", keeps_values=keeps_values).values()
    assert (dict(block.missing), block.different) == ({}, "")
    (tail,) = [item for item in require_case(block).inputs if item.part]
    assert tail.part is not None
    assert (tail.part.of, tail.part.dim, str(tail.part.start)) == (
        "cache",
        *((1, "1") if "arg" in factory else (0, "2")),
    )


def test_memory_that_no_case_can_share_is_told() -> None:
    (block, *_) = import_all("shared_memory:transposed").values()
    assert [*block.missing] == ["an argument in memory that is written, otherwise than as a slice of another tensor"]
    assert block.different == "output 0"
