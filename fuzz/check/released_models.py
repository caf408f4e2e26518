"""Released architectures, built small from their configurations with random weights; nothing is downloaded.

The packages are an extra (`pip install ".[models]"`), each imported where it is needed."""

import contextlib
import importlib
import inspect
import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

PACKAGES = ("transformers", "timm", "diffusers", "x_transformers")

_BATCH, _LENGTH, _SEED = 2, 13, 0
_WIDTH, _HEADS, _KV_HEADS, _HEAD_DIM, _VOCABULARY = 96, 6, 3, 16, 101
_Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
_Attempts = Iterator[Callable[[], _Built]]

_SIZES = {
    "vocab_size|vocab_size_per_layer_input|hash_byte_group_vocab": _VOCABULARY,
    "kv_heads|key_value_heads|num_head_groups": _KV_HEADS,
    "attention_heads|num_heads|n_heads?|heads|key_heads|value_heads": _HEADS,
    "layers|blocks|n_layers?|depth|num_hidden_groups": 2,
    "qk_rope_head_dim|lora_rank": 8,
    "qk_head_dim": 24,
    "head_dim|dim_head|d_kv|d_head|state_size|d_state": _HEAD_DIM,
    "intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|n_inner|d_inner|dff|dim_ff": 144,
    "hidden_size|hidden_dim|d_model|embed_dim|embedding_size|n_embd|emb_dim|dim|projection_dim|attention_dim": _WIDTH,
    "text_dim|caption_channels|output_dim": _WIDTH,
    r"max_position_embeddings|n_positions|n_ctx|max_\w+_positions|max_sequence_length|image_size|img_size": 64,
    "sample_size": 32,
    "experts": 4,
    "num_experts_per_tok|moe_k|top_?k": 2,
    "(sliding_|attention_|local_)?window(_size)?|local_attention": 8,
    "layers_per_block|refiner_layers": 1,
}
"""The sizes that configurations get, by the ends of their fields' names; the first match decides."""


class ModelError(Exception):
    """A model can't be built; one line says why."""


def list_architectures(package: str) -> list[str]:
    """The architectures of `package` that can be tried, sorted. Raises `ModelError` if the package is missing."""
    with _quiet():
        return sorted(_find(package)[0]())


def build(name: str) -> _Built:
    """The model `package/architecture` or `package/architecture@attention` ("eager", "sdpa" ...), and arguments with
    which its forward pass has run: float32, on the CPU, in evaluation mode. Raises `ModelError` with the reason."""
    package, _, rest = name.partition("/")
    architecture, _, attention = rest.partition("@")
    with _quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        make = _find(package)[1]
        met = ""
        try:
            for attempt in make(architecture, attention):
                torch.manual_seed(_SEED)
                try:
                    module, args, kwargs = attempt()
                    module.eval()(*args, **kwargs)
                except Exception as error:
                    met = met or _line(error)
                else:
                    return module, args, kwargs
        except Exception as error:
            met = _line(error)
        raise ModelError(f"{name}: {met}")


def _find(package: str) -> tuple[Callable[[], list[str]], Callable[[str, str], _Attempts]]:
    makers: dict[str, tuple[Callable[[], list[str]], Callable[[str, str], _Attempts]]] = {
        "transformers": (_list_transformers, _make_transformers),
        "timm": (_list_timm, _make_timm),
        "diffusers": (_list_diffusers, _make_diffusers),
        "x_transformers": (lambda: list(_LAYERS), _make_x_transformers),
    }
    if package not in makers:
        raise ModelError(f"no package {package!r}: {', '.join(PACKAGES)}")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        importlib.import_module(package)
    except Exception as error:
        raise ModelError(f"{package} can't be imported: {_line(error)}") from error
    return makers[package]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, ModelError) else " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _list_transformers() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def _make_transformers(architecture: str, attention: str) -> _Attempts:
    import transformers

    transformers.logging.set_verbosity_error()
    config = _shrink(transformers.CONFIG_MAPPING[architecture], {})
    torch.manual_seed(_SEED)
    options = {"attn_implementation": attention} if attention else {}
    model = transformers.AutoModel.from_config(config, dtype=torch.float32, **options)
    media = ("pixel_values", "input_features", "input_values")
    for form, return_dict, names in itertools.product(
        (0, 1), (False, True), ((model.main_input_name,), *(("input_ids", name) for name in media), media)
    ):

        def attempt(form: int = form, return_dict: bool = return_dict, names: tuple[str, ...] = names) -> _Built:
            model.config.return_dict = return_dict
            masks = ("attention_mask", "decoder_input_ids", "decoder_attention_mask", "bbox")
            return model, (), _make_inputs(model, {*names, *(masks if "input_ids" in names else masks[1:])}, form)

        yield attempt


def _shrink(kind: Any, ids: dict[str, int]) -> Any:
    """A small configuration of class `kind`; `ids` numbers the special tokens met so far, by field."""
    default = vars(kind())
    fields = {name: default[name] for name in kind.__dataclass_fields__ if name in default}
    heads, depth = fields.get("num_attention_heads"), fields.get("num_hidden_layers")
    values: dict[str, Any] = {}
    for name, old in fields.items():
        if hasattr(old, "to_dict"):
            values[name] = _shrink(type(old), ids)
        elif name == "use_cache":
            values[name] = False
        elif re.search(r"_token_(id|index)$", name) and isinstance(old, int):
            values[name] = ids.setdefault(name, len(ids) + 1)
        elif name == "window_size" and "depths" in fields:
            values[name] = 2
        elif name == "num_key_value_heads" and old == heads:
            values[name] = _HEADS
        elif name == "head_dim" and old is None:
            values[name] = _HEAD_DIM
        elif isinstance(old, dict) and "mrope_section" in old:
            third = 3 * int(8 * old.get("partial_rotary_factor", 1)) // 8
            values[name] = {
                **old,
                "mrope_section": [int(8 * old.get("partial_rotary_factor", 1)) - 2 * third, third, third],
            }
        elif isinstance(old, (list, tuple)) and old:
            if isinstance(old[0], int) and re.search("depths|num_blocks|blocks_per_stage|layer_repeats", name):
                values[name] = type(old)([1] * len(old))
            elif len(old) == depth:  # one of each kind of layer
                values[name] = [old[0], next((item for item in old if item != old[0]), old[0])]
        elif (size := _find_size(name, old)) is not None:
            values[name] = size
    return kind(**values)


def _find_size(name: str, old: Any) -> int | None:
    if not isinstance(old, int) or isinstance(old, bool):
        return None
    if name.endswith("patch_size"):
        return min(old, 16)
    return next((size for words, size in _SIZES.items() if re.fullmatch(rf"(\w+_)?({words})", name)), None)


def _make_inputs(model: Any, wanted: set[str], form: int) -> dict[str, Any]:
    """Arguments of the forward pass: those that it requires and those `wanted` that it has. Raises `ModelError` for a
    required one without a rule. `form` picks one of the layouts in which models take images, sound and samples."""

    def find(*names: str, otherwise: int) -> int:
        found = (_search(model.config, name) for name in names)
        return next((value for value in found if isinstance(value, int) and value), otherwise)

    channels = find("num_channels", "in_channels", "in_chans", "in_dim", "latent_channels", otherwise=3)
    side, patch = find("image_size", "img_size", otherwise=64), find("patch_size", otherwise=8)
    mels = find("num_mel_bins", "feature_size", "input_feat_size", otherwise=80)
    frames = 2 * find("max_source_positions", otherwise=36)
    image = (_BATCH, channels, side, side)
    grid = torch.tensor([[1, 4, 4], [1, 4, 6]])
    patches = channels * find("temporal_patch_size", otherwise=1) * patch * patch
    sample = (
        (_BATCH, channels, 8, 8),
        (_BATCH, channels, 3, 8, 8),
        (_BATCH, _LENGTH, channels),
        (_BATCH, channels, 32),
    )
    axes = len(getattr(model.config, "axes_dims_rope", None) or (1, 1, 1))
    rules: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: torch.randint(40, _VOCABULARY, (_BATCH, _LENGTH)),
        "decoder_input_ids": lambda: torch.randint(40, _VOCABULARY, (_BATCH, _LENGTH - 2)),
        "attention_mask": lambda: _make_mask(_LENGTH),
        "decoder_attention_mask": lambda: _make_mask(_LENGTH - 2),
        "bbox": lambda: torch.tensor([1, 2, 5, 9]).expand(_BATCH, _LENGTH, 4),
        "pixel_values": lambda: torch.randn(
            image if form == 0 else (_BATCH, find("num_frames", otherwise=4), *image[1:])
        ),
        "pixel_values_videos": lambda: torch.randn(
            _BATCH, find("num_frames", "frames_per_clip", otherwise=4), *image[1:]
        ),
        "input_features": lambda: torch.randn((_BATCH, mels, frames) if form == 0 else (_BATCH, frames, mels)),
        "input_features_mask": lambda: torch.ones(_BATCH, frames, dtype=torch.int64),
        "input_values": lambda: torch.randn((_BATCH, 2050) if form == 0 else (_BATCH, 1, 2050)),
        "past_values": lambda: torch.randn(
            _BATCH, find("context_length", otherwise=32), find("num_input_channels", otherwise=1)
        ),
        "grid_thw": lambda: grid,
        "image_grid_thw": lambda: grid,
        "timestep": lambda: torch.tensor([3, 700]),
        "encoder_hidden_states": lambda: torch.randn(_BATCH, _LENGTH + 2, _WIDTH),
        "encoder_attention_mask": lambda: _make_mask(_LENGTH + 2).bool(),
        "pooled_projections": lambda: torch.randn(_BATCH, _WIDTH),
        "img_ids": lambda: torch.arange(_LENGTH * axes).view(_LENGTH, axes) % 5,
        "txt_ids": lambda: torch.zeros(_LENGTH + 2, axes),
        "guidance": lambda: torch.tensor([2.0, 3.5]),
        "return_dict": lambda: False,
    }
    for name in ("sample", "hidden_states", "x"):
        rules[name] = lambda: torch.randn(sample[form])
    parameters = inspect.signature(model.forward).parameters
    if "grid_thw" in parameters:
        rules["hidden_states"] = rules["pixel_values"] = lambda: torch.randn(int(grid.prod(1).sum()), patches)
    names = [
        n for n, p in parameters.items() if n in wanted or (p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
    ]
    for name in names:
        if name not in rules:
            raise ModelError(f"no rule for the input {name!r}")
    return {name: rules[name]() for name in names}


def _make_mask(length: int) -> torch.Tensor:
    """1 where there is no padding."""
    return (torch.arange(length) < torch.tensor([[length], [length - 4]])).long()


def _search(config: Any, field: str) -> Any:
    """A field of a configuration, or of the first of its parts that has it; None if none has."""
    if (value := vars(config).get(field)) is not None:
        return value[0] if isinstance(value, (list, tuple)) and value else value
    nested = (_search(part, field) for part in vars(config).values() if hasattr(part, "to_dict"))
    return next((value for value in nested if value is not None), None)


def _list_timm() -> list[str]:
    """The smallest model of each family, by the words of its name."""
    import timm

    words = ("test_", "atto", "femto", "pico", "nano", "tiny", "xxs", "xs", "mini", "small", "_s", "")
    families = [timm.list_models(module=family) for family in timm.list_modules()]
    return [next(name for word in words for name in names if word in name) for names in families if names]


def _make_timm(architecture: str, attention: str) -> _Attempts:
    import timm

    timm.layers.set_fused_attn(_is_fused(attention))
    given = timm.get_pretrained_cfg(architecture)
    largest = max(given.input_size[1:]) if given else 224
    reductions: tuple[dict[str, Any], ...] = (
        {"depth": 2, "embed_dim": _WIDTH, "num_heads": _HEADS},
        {"depth": 2},
        *({name: (1,) * stages} for name in ("depths", "layers") for stages in (4, 3)),
        {},
    )
    for side, reduction, name in itertools.product((64, 56, largest), reductions, ("img_size", "")):

        def attempt(side: int = side, reduction: dict[str, Any] = reduction, name: str = name) -> _Built:
            options = {**reduction, name: side} if name else reduction
            return timm.create_model(architecture, num_classes=11, **options), (torch.randn(_BATCH, 3, side, side),), {}

        yield attempt


def _is_fused(attention: str) -> bool:
    if attention not in {"", "sdpa", "eager"}:
        raise ModelError(f"attention is 'sdpa' or 'eager' here, not {attention!r}")
    return attention != "eager"


def _list_diffusers() -> list[str]:
    import diffusers

    kinds = ((name, getattr(diffusers, name)) for name in dir(diffusers) if re.match("(?!Flax|Multi)[A-Z]", name))
    return [name for name, kind in kinds if inspect.isclass(kind) and issubclass(kind, diffusers.ModelMixin)]


def _make_diffusers(architecture: str, attention: str) -> _Attempts:
    import diffusers

    if architecture not in _list_diffusers() or attention not in {"", "sdpa"}:
        raise ModelError("no model of that name, or attention that is not 'sdpa'")
    kind = getattr(diffusers, architecture)
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        old = parameter.default
        if name.endswith("block_out_channels") and isinstance(old, tuple):
            options[name] = (32, *[64] * (len(old) - 1))
        elif name in {"axes_dims_rope", "axes_dims", "rope_axes_dim"} and old:
            options[name] = {2: (8, 8), 3: (4, 6, 6), 4: (4, 4, 4, 4)}[len(old)]
        elif (size := _find_size(name, old)) is not None:
            options[name] = size
    wanted = {
        "timestep",
        "encoder_hidden_states",
        "pooled_projections",
        "img_ids",
        "txt_ids",
        "guidance",
        "return_dict",
    }
    for form in range(4):

        def attempt(form: int = form) -> _Built:
            model = kind(**options)
            return model, (), _make_inputs(model, wanted, form)

        yield attempt


_LAYERS: dict[str, dict[str, Any]] = {
    "alibi": {"alibi_pos_bias": True},
    "cross_attention": {"cross_attend": True},
    "encoder": {"rel_pos_bias": True},
    "gated_values": {"attn_gate_values": True, "attn_head_scale": True},
    "grouped_heads": {"attn_kv_heads": _KV_HEADS, "rotary_pos_emb": True},
    "memory": {"attn_num_mem_kv": 5},
    "qk_norm": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "residual_attention": {"residual_attn": True, "rel_pos_bias": True},
    "rmsnorm_swiglu": {"use_rmsnorm": True, "ff_swish": True, "ff_glu": True, "ff_no_bias": True},
    "rotary": {"rotary_pos_emb": True},
    "softclamp": {"attn_softclamp_logits": True},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "xpos": {"rotary_xpos": True},
}


def _make_x_transformers(architecture: str, attention: str) -> _Attempts:
    from x_transformers import Decoder, Encoder, TransformerWrapper

    layers = {"dim": _WIDTH, "depth": 2, "heads": _HEADS, "attn_dim_head": _HEAD_DIM, **_LAYERS[architecture]}
    layers["attn_flash"] = attention != "" and _is_fused(attention)

    def attempt() -> _Built:
        stack = (Encoder if architecture == "encoder" else Decoder)(**layers)
        model = TransformerWrapper(num_tokens=_VOCABULARY, max_seq_len=64, attn_layers=stack)
        kwargs = {"mask": _make_mask(_LENGTH).bool()}
        if architecture == "cross_attention":
            kwargs |= {
                "context": torch.randn(_BATCH, _LENGTH + 2, _WIDTH),
                "context_mask": _make_mask(_LENGTH + 2).bool(),
            }
        return model, (torch.randint(_VOCABULARY, (_BATCH, _LENGTH)),), kwargs

    yield attempt
