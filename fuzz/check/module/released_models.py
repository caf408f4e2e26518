"""Released architectures, built small from their configurations with random weights; nothing is downloaded.

The packages are an extra (`pip install ".[models]"`), each imported where it is needed."""

import copy
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

from fuzz.check.module.model_inputs import LENGTH, VOCABULARY, WIDTH, find_cache, make_inputs, make_mask, make_step
from fuzz.check.module.model_runs import USUAL, FactoryMissingError, ModelError, ModelRun, NoCacheError, choose_runs

__all__ = ["PACKAGES", "ModelError", "build", "list_architectures", "list_runs"]

PACKAGES = ("transformers", "timm", "diffusers", "x_transformers")

_SEED, _SECONDS = 0, 8.0
_HEADS, _KV_HEADS, _HEAD_DIM, _ROTARY = 6, 3, 16, 8
_SIZES = {
    "vocab_size|vocab_size_per_layer_input|hash_byte_group_vocab": VOCABULARY,
    "kv_heads|key_value_heads|num_head_groups": _KV_HEADS,
    "attention_heads|num_heads|n_heads?|heads|key_heads|value_heads": _HEADS,
    "kv_shared_layers": 0,
    "layers|blocks|n_layers?|depth|num_hidden_groups|n_groups?": 2,
    "layers_per_block|refiner_layers|topk_group|attn_layer_offset": 1,
    "attn_layer_period": 2,
    "qk_rope_head_dim|rotary_dim|lora_rank": _ROTARY,
    "qk_head_dim": _HEAD_DIM + _ROTARY,
    "mamba_d_head|mamba_head_dim": 32,
    "head_dim|dim_head|d_kv|d_head|state_size|d_state": _HEAD_DIM,
    "intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|n_inner|d_inner|dff|dim_ff": 144,
    "mamba_d_ssm": 2 * WIDTH,
    "hidden_size|hidden_dim|d_model|embed_dim|embedding_size|n_embd|emb_dim|dim|projection_dim|attention_dim": WIDTH,
    "text_dim|caption_channels|output_dim|bottleneck_size": WIDTH,
    r"max_position_embeddings|n_positions|n_ctx|max_\w+_positions|max_sequence_length|image_size|img_size": 64,
    "sample_size": 32,
    "experts": 4,
    "num_experts_per_tok|moe_k|top_?k": 2,
    "(sliding_|attention_|local_)?window(_size)?|local_attention": 8,
}
"""The sizes that configurations get, by the ends of their fields' names; the first match decides."""

_OTHER_LAYERS = {"mamba": "attention", "linear_attention": "full_attention"}
"""The second of two layers where all layers of a configuration are of one kind, which has no attention."""

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

_Built = tuple[Any, tuple[Any, ...], dict[str, Any]]
_Attempts = Iterator[Callable[[], _Built]]


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


def list_runs(name: str) -> tuple[str, ...]:
    """The ways people run `package/architecture`, the most telling first: names for `build`. Builds it to see which
    apply. Raises `ModelError` as `build` does."""
    model, _, kwargs = build(name)
    steps = bool(find_cache(model))
    if steps:
        try:
            build(name, str(ModelRun(step=True)))
        except ModelError:
            steps = False
    masked = any(argument == "mask" or argument.endswith("attention_mask") for argument in kwargs)
    return tuple(map(str, choose_runs(masked=masked, steps=steps)))


def build(name: str, run: str = "") -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model `package/architecture` or `package/architecture@attention` ("eager", "sdpa" ...), and arguments with
    which a copy of it has run: float32, on the CPU, the same each time. In `run`, a name of `list_runs`, the model is
    in training or evaluation mode, and a step has its cache among the arguments. Raises `ModelError` with the reason.
    """
    package, _, rest = name.partition("/")
    architecture, _, attention = rest.partition("@")
    module = _import(package)
    if package != "transformers" and attention not in {"", "sdpa", "eager"}:
        raise ModelError("attention is 'sdpa' or 'eager' here")
    if package.endswith("transformers") and architecture not in list_architectures(package):
        raise ModelError("no such architecture")
    makers = dict(zip(PACKAGES, (_make_transformers, _make_timm, _make_diffusers, _make_x_transformers), strict=True))
    chosen = ModelRun.parse(run) if run else USUAL
    attempts = makers[package](module, architecture, attention, chosen)
    met, deadline = "", time.process_time() + _SECONDS
    with torch.random.fork_rng(devices=[]):
        while not met or time.process_time() < deadline:
            torch.manual_seed(_SEED)
            try:
                built = _prepare(next(attempts), chosen)
            except StopIteration:
                break
            except NoCacheError:
                raise
            except Exception as error:
                met = met or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            else:
                return built
    raise ModelError(met)


def _prepare(attempt: Callable[[], _Built], run: ModelRun) -> _Built:
    """The model of an attempt, in the mode of `run`, and its arguments; a copy of both has run."""
    with torch.no_grad():
        model, args, kwargs = attempt()
        model.eval()
        if run.step:
            kwargs = make_step(model, kwargs)
    model.train(run.training)
    trial, (args_again, kwargs_again) = copy.deepcopy((model, (args, kwargs)))
    with torch.set_grad_enabled(run.training):
        trial(*args_again, **kwargs_again)
    return model, args, kwargs


def _import(name: str) -> Any:
    package = name.partition(".")[0]
    if package not in PACKAGES:
        raise ModelError(f"no package {package!r}: {', '.join(PACKAGES)}")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise FactoryMissingError(f"{package} can't be imported: {' '.join(str(error).split())}") from error


def _make_transformers(transformers: Any, architecture: str, attention: str, run: ModelRun) -> _Attempts:
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
        parameters = inspect.signature(model.forward).parameters  # generate() counts positions for those with a cache
        counted = (run.step or run.padding == "left") and "use_cache" in parameters and "position_ids" in parameters
        main = (model.main_input_name, *text[0 if model.main_input_name == "input_ids" else 2 :])
        for form, returned in itertools.product((0, 1), (False, None, True)):
            for wanted in (main, *((*text, name) for name in media), media):
                if counted:
                    yield functools.partial(_give, model, (*wanted, "position_ids"), form, returned, run)
                yield functools.partial(_give, model, wanted, form, returned, run)


def _give(model: Any, wanted: tuple[str, ...], form: int, return_dict: bool | None, run: ModelRun) -> _Built:
    """A tuple is asked for by the configuration (False) or as an argument (None)."""
    model.config.return_dict = return_dict is not False
    inputs = make_inputs(model, {*wanted}, form, run)
    takes = return_dict is None and "return_dict" in inspect.signature(model.forward).parameters
    return model, (), {**inputs, "return_dict": False} if takes else inputs


_FIXED = {
    "use_cache": False,
    "apply_spec_augment": False,  # draws from numpy
    "attn_layer_indices": [1],  # of bamba, whose other layers have no attention
}


def _shrink(default: Any, optional: bool, ids: dict[str, int]) -> Any:
    """`default` with small sizes; those that may be None stay so unless `optional`. `ids` numbers special tokens."""
    kind, plain = type(default), vars(type(default)())
    fields = {name: value for name, value in vars(default).items() if name in kind.__dataclass_fields__}
    depth = fields.get("num_hidden_layers")
    values = {name: value for name, value in fields.items() if repr(value) != repr(plain.get(name, value))}
    for name, old in fields.items():
        if hasattr(old, "to_dict"):
            values[name] = _shrink(old, optional, ids)
        elif name in _FIXED:
            values[name] = _FIXED[name]
        elif re.search(r"_token_(id|index)$", name) and (
            isinstance(old, int) or fields.get("mask_token_id", 0) is None
        ):
            values[name] = ids.setdefault(name, len(ids) + 1)
        elif name in _OF_FAMILIES and _OF_FAMILIES[name][0](old, fields):
            values[name] = _OF_FAMILIES[name][1](old, fields)
        elif isinstance(old, (list, tuple)) and old:
            if (few := _shorten(name, old, depth)) is not None:
                values[name] = few
        elif (old is not None or optional) and (size := _find_size(name, old)) is not None:
            values[name] = size
    return kind(**values)


def _shorten_rotation(old: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    head_dim = _ROTARY if "qk_rope_head_dim" in fields else _HEAD_DIM
    half = head_dim * old.get("partial_rotary_factor", 1) // 2
    return {**old, "mrope_section": [int(half - 3 * half // 8 * 2), *[int(3 * half // 8)] * 2]}


_OF_FAMILIES: dict[str, tuple[Callable[[Any, dict[str, Any]], bool], Callable[[Any, dict[str, Any]], Any]]] = {
    # mamba2
    "num_heads": (lambda _, of: {"expand", "n_groups"} <= {*of}, lambda _, of: of["expand"] * WIDTH // _HEAD_DIM),
    # gpt_neo: [kinds of layers, how often]
    "attention_types": (lambda *_: True, lambda old, _: [[old[0][0], 1]]),
    "num_key_value_heads": (lambda old, of: bool(old == of.get("num_attention_heads")), lambda *_: _HEADS),
    "head_dim": (lambda _, of: "qk_rope_head_dim" in of, lambda *_: _ROTARY),
    "window_size": (lambda _, of: "depths" in of, lambda *_: 2),
    "rope_parameters": (lambda old, _: isinstance(old, dict) and "rope_type" in old, _shorten_rotation),
}
"""Fields with a small value of their own: whether it is meant, by the old value and all fields, and the value."""


def _shorten(name: str, old: Any, depth: int | None) -> Any:
    """A list with an entry for each block or layer: each block has one layer; of layers one of each kind. Else None."""
    if isinstance(old[0], int) and re.search("depths|num_blocks|blocks_per_stage|layer_repeats", name):
        return type(old)([1] * len(old))
    if len(old) == depth or name == "block_types":
        return [old[0], next((item for item in old if item != old[0]), _OTHER_LAYERS.get(old[0], old[0]))]
    return None


def _find_size(name: str, old: Any) -> int | None:
    if old is not None and type(old) is not int:
        return None
    if name.endswith("patch_size"):
        return min(old or 16, 16)
    return next((size for words, size in _SIZES.items() if re.fullmatch(rf"(\w+_)?({words})", name)), None)


def _make_timm(timm: Any, architecture: str, attention: str, run: ModelRun) -> _Attempts:
    timm.layers.set_fused_attn(attention != "eager")

    def make(side: int, options: dict[str, Any]) -> _Built:
        return timm.create_model(architecture, num_classes=11, **options), (torch.randn(run.batch, 3, side, side),), {}

    given = timm.get_pretrained_cfg(architecture)
    lists = ({name: (1,) * stages} for name in ("depths", "layers") for stages in (4, 3))
    reductions = ({"depth": 2, "embed_dim": WIDTH, "num_heads": _HEADS}, {"depth": 2}, *lists, {})
    for side in (64, 56, max(given.input_size[1:]) if given else 224):
        for reduction, sized in itertools.product(reductions, ({"img_size": side}, {})):
            yield functools.partial(make, side, {**reduction, **sized})


def _make_diffusers(diffusers: Any, architecture: str, attention: str, run: ModelRun) -> _Attempts:
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
        yield functools.partial(_give, model, wanted, form, None, run)


def _make_x_transformers(x_transformers: Any, architecture: str, attention: str, run: ModelRun) -> _Attempts:
    layers = {"dim": WIDTH, "depth": 2, "heads": _HEADS, "attn_dim_head": _HEAD_DIM, **_LAYERS[architecture]}
    layers["attn_flash"] = attention == "sdpa"
    stack = (x_transformers.Encoder if architecture == "encoder" else x_transformers.Decoder)(**layers)
    model = x_transformers.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=64, attn_layers=stack)
    kwargs = {"mask": make_mask(LENGTH, run).bool()}
    if architecture == "cross_attention":
        kwargs["context"] = torch.randn(run.batch, LENGTH + 2, WIDTH)
        kwargs["context_mask"] = make_mask(LENGTH + 2, run).bool()
    yield lambda: (model, (torch.randint(VOCABULARY, (run.batch, LENGTH)),), kwargs)


if __name__ == "__main__":
    found = (list_runs if "/" in sys.argv[1] else list_architectures)(sys.argv[1])
    print("\n".join(found))  # noqa: T201 - the answer of this program
