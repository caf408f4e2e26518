"""Inputs of released models, by the names of the parameters of their forward pass."""

import copy
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from fuzz.check.module.model_runs import ModelError, ModelRun, NoCacheError

LENGTH, WIDTH, VOCABULARY = 13, 96, 101
_FIRST_WORD = 40  # of a text; the numbers below are those of special tokens
_MISSING = (0, 4, 7)
"""How many tokens the rows of a padded batch lack; a row alone lacks as many as the second."""
_CACHES = ("cache", "past_key_values", "cache_params")


def make_inputs(model: Any, wanted: set[str], form: int, run: ModelRun) -> dict[str, Any]:
    """The arguments that the forward pass requires, and those `wanted` that it has; `form` picks a layout of images,
    sound or samples. Raises `ModelError` where there is no rule for a required one."""

    def find(otherwise: int, *names: str) -> int:
        found = (find_field(model.config, name) for name in names)
        return next((value for value in found if isinstance(value, int) and value), otherwise)

    batch = run.batch
    channels = find(3, "num_channels", "in_channels", "in_chans", "in_dim", "latent_channels")
    side, patch, frames = find(64, "image_size", "img_size"), find(8, "patch_size"), find(4, "num_frames")
    image, video = (batch, channels, side, side), (batch, frames, channels, side, side)
    mels = find(80, "feature_projection_input_dim", "num_mel_bins", "feature_size", "input_feat_size")
    sound = 2 * find(36, "max_source_positions")
    axes = len(getattr(model.config, "axes_dims_rope", None) or (1, 1, 1))
    grid = torch.tensor([[1, 4, 4], [1, 4, 6], [1, 2, 4]][:batch])
    sizes = ((channels, 8, 8), (channels, 3, 8, 8), (LENGTH, channels), (channels, 32), (3, channels, 8, 8))
    hidden = torch.randn(batch, *sizes[form])
    rules = {
        "input_ids": torch.randint(_FIRST_WORD, VOCABULARY, (batch, LENGTH)),
        "decoder_input_ids": torch.randint(_FIRST_WORD, VOCABULARY, (batch, LENGTH - 2)),
        "attention_mask": make_mask(LENGTH, run),
        "decoder_attention_mask": make_mask(LENGTH - 2, run),
        "bbox": torch.tensor([1, 2, 5, 9]).repeat(batch, LENGTH, 1),
        "pixel_values": torch.randn(video if form else image),
        "pixel_values_videos": torch.randn(video),
        "input_features": torch.randn((batch, sound, mels) if form else (batch, mels, sound)),
        "input_features_mask": torch.ones(batch, sound, dtype=torch.int64),
        "input_values": torch.randn((batch, 1, 2050) if form else (batch, 2050)),
        "past_values": torch.randn(batch, find(32, "context_length"), find(1, "num_input_channels")),
        "grid_thw": grid,
        "image_grid_thw": grid,
        "encoder_hidden_states": torch.randn(batch, LENGTH + 2, WIDTH),
        **dict.fromkeys(("sample", "hidden_states", "x", "latents"), hidden),
        **dict.fromkeys(("inputs_embeds", "embeds"), torch.randn(batch, LENGTH, WIDTH)),
        "timestep": torch.tensor([3, 700, 250][:batch]),
        "encoder_attention_mask": make_mask(LENGTH + 2, run).bool(),
        "pooled_projections": torch.randn(batch, WIDTH),
        "img_ids": torch.arange(LENGTH * axes).view(LENGTH, axes) % 5.0,
        "txt_ids": torch.zeros(LENGTH + 2, axes),
        "guidance": torch.tensor([2.0, 3.5, 5.0][:batch]),
    }
    filler = find(0, "pad_token_id", "eos_token_id")
    for start in ("", "decoder_"):
        rules[f"{start}input_ids"].masked_fill_(rules[f"{start}attention_mask"] == 0, filler)
    rules["position_ids"] = count_positions(rules["attention_mask"])
    parameters = inspect.signature(model.forward).parameters
    if "decoder_input_ids" not in parameters:
        rules.pop("decoder_attention_mask")
    if not getattr(model.config, "guidance_embeds", False):
        rules.pop("guidance")
    if "grid_thw" in parameters:  # patches of images, one after another
        width = channels * find(1, "temporal_patch_size") * patch * patch
        rules["hidden_states"] = rules["pixel_values"] = torch.randn(int(grid.prod(1).sum()), width)
    required = {name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    for name in sorted(required - set(rules)):  # such as qformer_input_ids
        like = [known for known in rules if name.endswith(f"_{known}")]
        if not like:
            raise ModelError(f"no rule for the input {name!r}")
        rules[name] = rules[max(like, key=len)]
    return {name: rules[name] for name in parameters if name in rules and name in required | wanted}


def make_mask(length: int, run: ModelRun) -> Tensor:
    """An int64 mask of (batch, length): 1 where there is a token, 0 where a row is filled."""
    missing = torch.tensor(_MISSING[: run.batch] if run.batch > 1 else _MISSING[1:2]).unsqueeze(1)
    place = torch.arange(length)
    if run.padding == "left":
        return (place >= missing).long()
    return (place < length - missing).long() if run.padding else torch.ones(run.batch, length, dtype=torch.int64)


def count_positions(mask: Tensor) -> Tensor:
    """The positions of tokens, as generate() of transformers counts them: padding has none."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def make_step(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the step after those: one new token a row, and the cache that a run with `kwargs` leaves. That
    run is in float64 where the model's code allows it, so that every version of torch leaves the same cache.

    The cache is an object of the package. Its classes become nodes of torch's pytree, so that its tensors are
    found, moved and cast as those of lists are. Raises `ModelError` if the model has no cache."""
    try:
        step = _cast(_run_before(copy.deepcopy(model).double(), _cast(kwargs, torch.float64)), torch.float32)
        exact = all(leaf.isfinite().all() for leaf in _pytree.tree_leaves(step) if isinstance(leaf, Tensor))
    except ModelError:
        raise
    except Exception:
        exact = False
    step = step if exact else _run_before(model, kwargs)
    start = "decoder_" if "decoder_input_ids" in kwargs else ""
    before = kwargs[f"{start}input_ids"]
    step[f"{start}input_ids"] = torch.randint(_FIRST_WORD, VOCABULARY, (len(before), 1))
    mask = kwargs.get(f"{start}attention_mask", torch.ones_like(before))
    mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    if f"{start}attention_mask" in kwargs:
        step[f"{start}attention_mask"] = mask
    if "position_ids" in kwargs:
        step["position_ids"] = count_positions(mask)[:, -1:]
    return step


def _run_before(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the step has too, the output of an encoder, and the cache."""
    parameters, name = inspect.signature(model.forward).parameters, find_cache(model)
    if not name or not {"input_ids", "decoder_input_ids"} & {*kwargs}:
        raise ModelError("it takes no cache")
    if "decoder_input_ids" in kwargs:
        encoder = model.get_encoder()
        takes = inspect.signature(encoder.forward).parameters
        hidden = encoder(**{name: value for name, value in kwargs.items() if name in takes})[0]
        outputs = importlib.import_module("transformers.modeling_outputs")
        kept = {"attention_mask", *(name for name, one in parameters.items() if one.default is one.empty)}
        kwargs = {name: value for name, value in kwargs.items() if "decoder" in name or name in kept}
        kwargs["encoder_outputs"] = outputs.BaseModelOutput(last_hidden_state=hidden)
    leaves = _pytree.tree_leaves(model(**kwargs, use_cache=True), is_leaf=_is_cache)
    cache = next((leaf for leaf in leaves if _is_cache(leaf)), None)
    if cache is None:
        raise NoCacheError("it returns no cache")
    _register(cache)
    return {**kwargs, name: cache, "use_cache": True}


def find_cache(model: Any) -> str:
    """The name of the argument that takes a cache; "" if there is none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _CACHES if name in parameters and "use_cache" in parameters), "")


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return _pytree.tree_map_only(Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, values)


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length")


def _register(value: Any) -> None:
    """Make the class of an object a node of torch's pytree, and those of the objects in its attributes."""
    kind = type(value)
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            _register(part)
    elif hasattr(value, "__dict__") and not isinstance(value, (Tensor, type)):
        if kind not in _pytree.SUPPORTED_NODES:
            _pytree.register_pytree_node(kind, _flatten, _unflatten)
        _register(vars(value))


def _flatten(value: Any) -> tuple[list[Any], Any]:
    return list(vars(value).values()), (type(value), *vars(value))


def _unflatten(children: Any, context: Any) -> Any:
    kind, *names = context
    made = object.__new__(kind)
    vars(made).update(zip(names, children, strict=True))
    return made


def find_field(config: Any, field: str) -> Any:
    """A field of a configuration, or of the first of its parts that has it; None if none has."""
    found = (vars(part).get(field) for part in _list_parts(config))
    value = next((value for value in found if value is not None), None)
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _list_parts(config: Any) -> Iterator[Any]:
    """A configuration and those nested in it."""
    yield config
    for part in list(vars(config).values()):
        if hasattr(part, "to_dict"):
            yield from _list_parts(part)
