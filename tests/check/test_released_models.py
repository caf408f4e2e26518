"""Released architectures, built small: they run, twice alike, in the form that was asked for."""

import importlib.util

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fuzz.check.released_models import PACKAGES, ModelError, build, list_architectures

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
