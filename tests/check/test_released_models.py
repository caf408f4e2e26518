"""Released architectures, built small: they run, twice alike, in the form that was asked for."""

import copy
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fuzz.check.module.model_inputs import count_positions, make_inputs, make_mask, make_step
from fuzz.check.module.model_runs import USUAL, ModelRun, choose_runs
from fuzz.check.module.released_models import PACKAGES, ModelError, build, list_architectures, list_runs

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages about each other
MODELS = (
    "transformers/llama@eager",
    "transformers/llama@sdpa",
    "transformers/bert",
    "transformers/t5",
    "transformers/clip",
    "transformers/swin",
    "transformers/whisper",
    "timm/test_vit",
    "diffusers/UNet2DConditionModel",
    "x_transformers/rotary",
)


@pytest.mark.samples
@pytest.mark.parametrize("name", MODELS)
def test_a_released_model_runs_small_and_the_same_each_time(name: str) -> None:
    package = name.partition("/")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    before = torch.random.get_rng_state()
    module, args, kwargs = build(name)
    again, *_ = build(name)
    assert torch.equal(before, torch.random.get_rng_state())
    assert sum(parameter.numel() for parameter in module.parameters()) < 20e6
    assert not any(part.training for part in module.modules())
    with torch.no_grad():
        outputs = [
            [leaf for leaf in tree_leaves(model(*args, **kwargs)) if torch.is_tensor(leaf)] for model in (module, again)
        ]
    assert outputs[0]
    for one, other in zip(*outputs, strict=True):
        assert torch.isfinite(one).all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["", "nowhere/llama", "transformers/none", "timm/none", "diffusers/ModelMixin"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """As are the names of packages that are not installed."""
    with pytest.raises(ModelError):
        build(name)


@pytest.mark.parametrize("package", PACKAGES)
def test_architectures_are_listed_where_their_package_is(package: str) -> None:
    if importlib.util.find_spec(package):
        assert list_architectures(package) == sorted(set(list_architectures(package)))
    else:
        with pytest.raises(ModelError):
            list_architectures(package)


@pytest.mark.samples
@pytest.mark.parametrize(
    ("name", "steps", "padded"),
    [
        ("transformers/llama@eager", True, True),
        ("transformers/t5@eager", True, True),
        ("transformers/bert@sdpa", False, True),
        ("transformers/vit@sdpa", False, False),
        ("diffusers/UNet2DConditionModel", False, False),
        ("x_transformers/rotary", False, True),
    ],
)
def test_every_run_of_a_model_is_built_the_same_each_time(name: str, steps: bool, padded: bool) -> None:
    if importlib.util.find_spec(name.partition("/")[0]) is None:
        pytest.skip("the package is not installed")
    runs = list_runs(name)
    assert any("step" in run for run in runs) == steps
    assert any("padding" in run for run in runs) == padded
    for run in runs:
        built, again = build(name, run), build(name, run)
        assert built[0].training == ModelRun.parse(run).training
        for values in zip(*([*one[0].parameters(), *list_tensors(one[1:])] for one in (built, again)), strict=True):
            assert torch.equal(*values)
        module, args, kwargs = copy.deepcopy(built)
        assert list_tensors(module(*args, **kwargs))
        assert len(list_tensors(kwargs)) == len(list_tensors(built[2]))
        for value, before in zip(list_tensors(built[1:]), list_tensors(again[1:]), strict=True):
            assert torch.equal(value, before)


def list_tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def test_a_run_is_found_by_its_name_alone() -> None:
    runs = choose_runs(masked=True, steps=True)
    assert [ModelRun.parse(str(run)) for run in runs] == runs
    assert len(set(map(str, runs))) == len(runs)
    assert str(ModelRun(training=True, padding="left", batch=1)) == "training, left padding, batch 1"
    with pytest.raises(ModelError, match="no run 'evaluation'"):
        ModelRun.parse("evaluation")


def test_runs_that_do_not_apply_are_not_chosen() -> None:
    plain = choose_runs(masked=False, steps=False)
    assert [*map(str, plain)] == ["inference", "training", "inference, batch 1", "training, batch 1"]
    assert all(not run.padding for run in choose_runs(masked=False, steps=True))


@pytest.mark.parametrize(
    ("run", "mask", "positions"),
    [
        (ModelRun(padding="left"), [8, 4, 1], [[0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 0, 1, 2, 3], [0] * 8]),
        (ModelRun(padding="right"), [8, 4, 1], [[*range(8)], [0, 1, 2, 3, 0, 0, 0, 0], [0] * 8]),
        (ModelRun(), [8, 8, 8], [[*range(8)]] * 3),
        (ModelRun(batch=1, padding="left"), [4], [[0, 0, 0, 0, 0, 1, 2, 3]]),
        (USUAL, [8, 4], [[*range(8)], [0, 1, 2, 3, 0, 0, 0, 0]]),
    ],
    ids=str,
)
def test_rows_are_filled_on_the_side_that_is_named(run: ModelRun, mask: list[int], positions: list[list[int]]) -> None:
    made = make_mask(8, run)
    assert made.dtype == torch.int64
    assert made.sum(1).tolist() == mask
    if run.padding:
        assert made[:, -1 if run.padding == "left" else 0].all()
    assert count_positions(made).tolist() == positions


class Sums:
    """A cache that is no node of torch's pytree."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Tensor]] = []

    def get_seq_length(self) -> int:
        return self.layers[0]["sums"].shape[1]


class Summing(nn.Module):
    """Sums embeddings of tokens so far, times their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 4)
        self.config = type("Config", (), {})()
        self.config.pad_token_id = 3

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Sums | None = None,
        use_cache: bool = False,
    ) -> Any:
        assert attention_mask is not None
        assert position_ids is not None
        kept = attention_mask[:, -input_ids.shape[1] :]
        parts = self.embed(input_ids) * (kept * (1 + position_ids)).unsqueeze(-1)
        cache = cache or Sums()
        before = [layer["sums"] for layer in cache.layers]
        cache.layers = [{"sums": torch.cat([*before, parts], 1)}]
        return cache.layers[0]["sums"].cumsum(1)[:, -input_ids.shape[1] :], cache if use_cache else None


def test_a_step_goes_on_where_the_run_before_ended() -> None:
    model = Summing().eval()
    kwargs = make_inputs(model, {"input_ids", "attention_mask", "position_ids"}, 0, ModelRun(padding="left", step=True))
    assert (kwargs["input_ids"] == 3).sum() == (kwargs["attention_mask"] == 0).sum() == 11
    with torch.no_grad():
        step = make_step(model, kwargs)
        whole = {
            "input_ids": torch.cat([kwargs["input_ids"], step["input_ids"]], 1),
            "attention_mask": step["attention_mask"],
            "position_ids": count_positions(step["attention_mask"]),
        }
        full, _ = model(**whole)
        assert step["position_ids"].tolist() == [[13], [9], [6]]
        assert len(list_tensors(step)) == 4  # that of the cache is seen
        cast = tree_map_only(Tensor, lambda value: value.double() if value.is_floating_point() else value, step)
        assert cast["cache"].layers[0]["sums"].dtype == torch.float64
        assert step["cache"].get_seq_length() == 13
        last, _ = model(**copy.deepcopy(step))
        assert torch.equal(last, full[:, -1:])
        assert step["cache"].get_seq_length() == 13
