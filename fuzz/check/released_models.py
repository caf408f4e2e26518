"""Released architectures, built small from their configurations with random weights; nothing is downloaded.

The packages are an extra (`pip install ".[models]"`), each imported where it is needed."""

import functools
import importlib
import inspect
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

PACKAGES = ("transformers", "timm", "diffusers", "x_transformers")

_BATCH, _LENGTH, _SEED, _SECONDS = 2, 13, 0, 8.0
_WIDTH, _HEADS, _KV_HEADS, _HEAD_DIM, _ROTARY, _VOCABULARY = 96, 6, 3, 16, 8, 101
_SIZES = {
    "vocab_size|vocab_size_per_layer_input|hash_byte_group_vocab": _VOCABULARY,
    "kv_heads|key_value_heads|num_head_groups": _KV_HEADS,
    "attention_heads|num_heads|n_heads?|heads|key_heads|value_heads": _HEADS,
    "kv_shared_layers": 0,
    "layers|blocks|n_layers?|depth|num_hidden_groups|n_groups?": 2,
    "layers_per_block|refiner_layers|topk_group": 1,
    "qk_rope_head_dim|rotary_dim|lora_rank": _ROTARY,
    "qk_head_dim": _HEAD_DIM + _ROTARY,
    "mamba_d_head|mamba_head_dim": 32,
    "head_dim|dim_head|d_kv|d_head|state_size|d_state": _HEAD_DIM,
    "intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|n_inner|d_inner|dff|dim_ff": 144,
    "mamba_d_ssm": 2 * _WIDTH,
    "hidden_size|hidden_dim|d_model|embed_dim|embedding_size|n_embd|emb_dim|dim|projection_dim|attention_dim": _WIDTH,
    "text_dim|caption_channels|output_dim|bottleneck_size": _WIDTH,
    r"max_position_embeddings|n_positions|n_ctx|max_\w+_positions|max_sequence_length|image_size|img_size": 64,
    "sample_size": 32,
    "experts": 4,
    "num_experts_per_tok|moe_k|top_?k": 2,
    "(sliding_|attention_|local_)?window(_size)?|local_attention": 8,
}
"""The sizes that configurations get, by the ends of their fields' names; the first match decides."""

_LAYERS: dict[str, dict[str, Any]] = {
    "alibi": {"alibi_pos_bias": True},
    "cross_attention": {"cross_attend": True},
    "encoder": {"rel_pos_bias": True},
    "grouped_heads": {"attn_kv_heads": _KV_HEADS, "rotary_pos_emb": True},
    "qk_norm": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "residual_attention": {"residual_attn": True, "rel_pos_bias": True},
    "rmsnorm_swiglu": {"use_rmsnorm": True, "ff_swish": True, "ff_glu": True, "ff_no_bias": True},
    "rotary": {"rotary_pos_emb": True},
    "softclamp": {"attn_softclamp_logits": True},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
}
"""x-transformers has options of its layers in place of architectures."""

_Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
_Attempts = Iterator[Callable[[], _Built]]


class ModelError(Exception):
    """A model can't be built; one line says why."""


def list_architectures(package: str) -> list[str]:
    """The architectures of `package` that can be tried, sorted. Raises `ModelError` if the package is missing."""
    module = _import(package)
    if package == "transformers":
        return sorted(_import("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES)
    if package == "timm":  # the smallest model of each family, by the words of its name
        words = ("test_", "atto", "femto", "pico", "nano", "tiny", "xxs", "xs", "mini", "small", "_s", "")
        families = filter(None, (module.list_models(module=family) for family in module.list_modules()))
        return sorted(next(name for word in words for name in names if word in name) for names in families)
    if package == "diffusers":
        kinds = {name: getattr(module, name) for name in dir(module) if re.match("(?!Flax|Multi|Model)[A-Z]", name)}
        return sorted(
            name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, module.ModelMixin)
        )
    return sorted(_LAYERS)


def build(name: str) -> _Built:
    """The model `package/architecture` or `package/architecture@attention` ("eager", "sdpa" ...), and arguments with
    which its forward pass has run: float32, on the CPU, in evaluation mode. Raises `ModelError` with the reason."""
    package, _, rest = name.partition("/")
    architecture, _, attention = rest.partition("@")
    module = _import(package)
    if package != "transformers" and attention not in {"", "sdpa", "eager"}:
        raise ModelError("attention is 'sdpa' or 'eager' here")
    if package.endswith("transformers") and architecture not in list_architectures(package):
        raise ModelError("no such architecture")
    makers = dict(zip(PACKAGES, (_make_transformers, _make_timm, _make_diffusers, _make_x_transformers), strict=True))
    attempts = makers[package](module, architecture, attention)
    met, deadline = "", time.process_time() + _SECONDS
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        while not met or time.process_time() < deadline:
            torch.manual_seed(_SEED)
            try:
                model, args, kwargs = next(attempts)()
                model.eval()(*args, **kwargs)
            except StopIteration:
                break
            except Exception as error:
                met = met or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            else:
                return model, args, kwargs
    raise ModelError(met)


def _import(name: str) -> Any:
    package = name.partition(".")[0]
    if package not in PACKAGES:
        raise ModelError(f"no package {package!r}: {', '.join(PACKAGES)}")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ModelError(f"{package} can't be imported: {' '.join(str(error).split())}") from error


def _make_transformers(transformers: Any, architecture: str, attention: str) -> _Attempts:
    transformers.logging.set_verbosity_error()
    default = transformers.CONFIG_MAPPING[architecture]()
    options = {"attn_implementation": attention} if attention else {}
    text = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "bbox")
    media = ("pixel_values", "input_features", "input_values")
    for optional in (False, True):
        try:
            config = _shrink(default, optional, {})
            model = transformers.AutoModel.from_config(config, dtype=torch.float32, **options)
        except Exception:
            if optional:
                raise
            continue
        main = (model.main_input_name, *text[0 if model.main_input_name == "input_ids" else 2 :])
        for form, returned in itertools.product((0, 1), (False, None, True)):
            for wanted in (main, *((*text, name) for name in media), media):
                yield functools.partial(_give, model, wanted, form, returned)


def _give(model: Any, wanted: tuple[str, ...], form: int, return_dict: bool | None) -> _Built:
    """A tuple is asked for by the configuration (False) or as an argument (None)."""
    model.config.return_dict = return_dict is not False
    inputs = _make_inputs(model, {*wanted}, form)
    takes = return_dict is None and "return_dict" in inspect.signature(model.forward).parameters
    return model, (), {**inputs, "return_dict": False} if takes else inputs


def _shrink(default: Any, optional: bool, ids: dict[str, int]) -> Any:
    """`default` with small sizes; those that may be None stay so unless `optional`. `ids` numbers special tokens."""
    kind, plain = type(default), vars(type(default)())
    fields = {name: value for name, value in vars(default).items() if name in kind.__dataclass_fields__}
    depth = fields.get("num_hidden_layers")
    values = {name: value for name, value in fields.items() if repr(value) != repr(plain.get(name, value))}
    for name, old in fields.items():
        if hasattr(old, "to_dict"):
            values[name] = _shrink(old, optional, ids)
        elif name == "use_cache":
            values[name] = False
        elif re.search(r"_token_(id|index)$", name) and isinstance(old, int):
            values[name] = ids.setdefault(name, len(ids) + 1)
        elif name == "num_key_value_heads" and old == fields.get("num_attention_heads"):
            values[name] = _HEADS
        elif name == "head_dim" and "qk_rope_head_dim" in fields:
            values[name] = _ROTARY
        elif name == "window_size" and "depths" in fields:
            values[name] = 2
        elif name == "rope_parameters" and isinstance(old, dict) and "rope_type" in old:
            half = (_ROTARY if "qk_rope_head_dim" in fields else _HEAD_DIM) * old.get("partial_rotary_factor", 1) // 2
            values[name] = {**old, "mrope_section": [int(half - 3 * half // 8 * 2), *[int(3 * half // 8)] * 2]}
        elif isinstance(old, (list, tuple)) and old:
            if isinstance(old[0], int) and re.search("depths|num_blocks|blocks_per_stage|layer_repeats", name):
                values[name] = type(old)([1] * len(old))
            elif len(old) == depth:  # one of each kind of layer
                values[name] = [old[0], next((item for item in old if item != old[0]), old[0])]
        elif (old is not None or optional) and (size := _find_size(name, old)) is not None:
            values[name] = size
    return kind(**values)


def _find_size(name: str, old: Any) -> int | None:
    if old is not None and type(old) is not int:
        return None
    if name.endswith("patch_size"):
        return min(old or 16, 16)
    return next((size for words, size in _SIZES.items() if re.fullmatch(rf"(\w+_)?({words})", name)), None)


def _make_inputs(model: Any, wanted: set[str], form: int) -> dict[str, Any]:
    """The arguments that the forward pass requires, and those `wanted` that it has; `form` picks a layout of images,
    sound or samples. Raises `ModelError` where there is no rule for a required one."""

    def find(otherwise: int, *names: str) -> int:
        found = (_search(model.config, name) for name in names)
        return next((value for value in found if isinstance(value, int) and value), otherwise)

    channels = find(3, "num_channels", "in_channels", "in_chans", "in_dim", "latent_channels")
    side, patch, frames = find(64, "image_size", "img_size"), find(8, "patch_size"), find(4, "num_frames")
    image, video = (_BATCH, channels, side, side), (_BATCH, frames, channels, side, side)
    mels = find(80, "feature_projection_input_dim", "num_mel_bins", "feature_size", "input_feat_size")
    sound = 2 * find(36, "max_source_positions")
    axes = len(getattr(model.config, "axes_dims_rope", None) or (1, 1, 1))
    grid = torch.tensor([[1, 4, 4], [1, 4, 6]])
    sizes = ((channels, 8, 8), (channels, 3, 8, 8), (_LENGTH, channels), (channels, 32), (3, channels, 8, 8))
    hidden = torch.randn(_BATCH, *sizes[form])
    rules = {
        "input_ids": torch.randint(40, _VOCABULARY, (_BATCH, _LENGTH)),
        "decoder_input_ids": torch.randint(40, _VOCABULARY, (_BATCH, _LENGTH - 2)),
        "attention_mask": _make_mask(_LENGTH),
        "decoder_attention_mask": _make_mask(_LENGTH - 2),
        "bbox": torch.tensor([1, 2, 5, 9]).repeat(_BATCH, _LENGTH, 1),
        "pixel_values": torch.randn(video if form else image),
        "pixel_values_videos": torch.randn(video),
        "input_features": torch.randn((_BATCH, sound, mels) if form else (_BATCH, mels, sound)),
        "input_features_mask": torch.ones(_BATCH, sound, dtype=torch.int64),
        "input_values": torch.randn((_BATCH, 1, 2050) if form else (_BATCH, 2050)),
        "past_values": torch.randn(_BATCH, find(32, "context_length"), find(1, "num_input_channels")),
        "grid_thw": grid,
        "image_grid_thw": grid,
        "encoder_hidden_states": torch.randn(_BATCH, _LENGTH + 2, _WIDTH),
        **dict.fromkeys(("sample", "hidden_states", "x", "latents"), hidden),
        **dict.fromkeys(("inputs_embeds", "embeds"), torch.randn(_BATCH, _LENGTH, _WIDTH)),
        "timestep": torch.tensor([3, 700]),
        "encoder_attention_mask": _make_mask(_LENGTH + 2).bool(),
        "pooled_projections": torch.randn(_BATCH, _WIDTH),
        "img_ids": torch.arange(_LENGTH * axes).view(_LENGTH, axes) % 5.0,
        "txt_ids": torch.zeros(_LENGTH + 2, axes),
        "guidance": torch.tensor([2.0, 3.5]),
    }
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


def _make_mask(length: int) -> torch.Tensor:
    return (torch.arange(length) < torch.tensor([[length], [length - 4]])).long()


def _search(config: Any, field: str) -> Any:
    """A field of a configuration, or of the first of its parts that has it; None if none has."""
    if (value := vars(config).get(field)) is not None:
        return value[0] if isinstance(value, (list, tuple)) and value else value
    nested = (_search(part, field) for part in vars(config).values() if hasattr(part, "to_dict"))
    return next((value for value in nested if value is not None), None)


def _make_timm(timm: Any, architecture: str, attention: str) -> _Attempts:
    timm.layers.set_fused_attn(attention != "eager")

    def make(side: int, options: dict[str, Any]) -> _Built:
        return timm.create_model(architecture, num_classes=11, **options), (torch.randn(_BATCH, 3, side, side),), {}

    given = timm.get_pretrained_cfg(architecture)
    lists = ({name: (1,) * stages} for name in ("depths", "layers") for stages in (4, 3))
    reductions = ({"depth": 2, "embed_dim": _WIDTH, "num_heads": _HEADS}, {"depth": 2}, *lists, {})
    for side in (64, 56, max(given.input_size[1:]) if given else 224):
        for reduction, sized in itertools.product(reductions, ({"img_size": side}, {})):
            yield functools.partial(make, side, {**reduction, **sized})


def _make_diffusers(diffusers: Any, architecture: str, attention: str) -> _Attempts:
    if attention == "eager":
        raise ModelError("attention is 'sdpa' here")
    kind = getattr(diffusers, architecture)
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        old = parameter.default
        if name.endswith("block_out_channels") and isinstance(old, tuple):
            options[name] = tuple(32 if width == old[0] else 64 for width in old)
        elif name in {"axes_dims_rope", "axes_dim_rope", "axes_dims", "rope_axes_dim"} and old:
            options[name] = {2: (8, 8), 3: (4, 6, 6), 4: (4, 4, 4, 4)}[len(old)]
        elif isinstance(old, int) and (size := _find_size(name, old)) is not None:
            options[name] = size
    wanted = ("timestep", "encoder_hidden_states", "pooled_projections", "img_ids", "txt_ids", "guidance")
    model = kind(**options)
    for form in range(5):
        yield functools.partial(_give, model, wanted, form, None)


def _make_x_transformers(x_transformers: Any, architecture: str, attention: str) -> _Attempts:
    layers = {"dim": _WIDTH, "depth": 2, "heads": _HEADS, "attn_dim_head": _HEAD_DIM, **_LAYERS[architecture]}
    layers["attn_flash"] = attention == "sdpa"
    stack = (x_transformers.Encoder if architecture == "encoder" else x_transformers.Decoder)(**layers)
    model = x_transformers.TransformerWrapper(num_tokens=_VOCABULARY, max_seq_len=64, attn_layers=stack)
    kwargs = {"mask": _make_mask(_LENGTH).bool()}
    if architecture == "cross_attention":
        kwargs["context"] = torch.randn(_BATCH, _LENGTH + 2, _WIDTH)
        kwargs["context_mask"] = _make_mask(_LENGTH + 2).bool()
    yield lambda: (model, (torch.randint(_VOCABULARY, (_BATCH, _LENGTH)),), kwargs)


if __name__ == "__main__":
    print("\n".join(list_architectures(sys.argv[1])))  # noqa: T201 - the answer of this program
