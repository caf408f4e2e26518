"""The families: how the models of one kind spell attention. A new family is an entry of FAMILIES.

An entry needs a weight and either preferences, outcomes of decisions that the generator takes anyway, or a writer, or
both. Where a family has no writer, the generator writes the program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from generators.sampling.builder import Builder
from generators.sampling.choices import Choices, Preferences
from generators.sampling.families import caches, cross, language, torch_calls, vision
from generators.sampling.layers import Norm, layer_norm, rms_norm

Write = Callable[[Builder, Choices], list[str]]
"""Writes a program and returns the names of the values that it returns, the output first."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of one kind spell attention.

    weight: how often it is drawn, relative to the others. preferences: outcomes of named decisions (the names that
    calls of `Choices.choose` and `Choices.choose_default` have). write: writes the whole program; `Builder.dims` has
    B, H, S, T, D and V, and a writer may change them or add others.
    """

    weight: float
    preferences: Preferences = field(default_factory=dict)
    write: Write | None = None


_SCALED_SCORES: Preferences = {"scale.place": "scores", "scale.divide": "mul"}
_DIVIDED_SCORES: Preferences = {"scale.place": "scores", "scale.divide": "div"}
_NO_MASK: Preferences = {"mask.kind": "none", "softmax.upcast": "none"}
_WIDE: Preferences = {"softmax.upcast": "argument", "softmax.back": "to"}
"""A softmax in float32, by its argument, and back."""
_FLOAT: Preferences = {"softmax.upcast": "float", "softmax.back": "to"}
_TRIANGLE: Preferences = {"mask.kind": "add", "mask.from": "made", "mask.triangle": "triu"}
_LOWEST: Preferences = {"mask.fill": "min", "mask.low": "full", "dropout": "dropout"}
_BERT: Preferences = {
    **_DIVIDED_SCORES,
    "order": "bshd",
    "mask.kind": "add",
    "mask.shape": "keys",
    "dropout": "dropout",
}
_EQUAL_0: Preferences = {"mask.kind": "equal_0", "mask.expand": "expand_as", "mask.fill": float("-inf")}
_DISTILBERT: Preferences = {**_EQUAL_0, "order": "bshd", "scale.divide": "div", "dropout": "dropout"}
_BUFFER: Preferences = {"scale.carrier": "full", "mask.kind": "where", "scores.transpose": "permute"}
_GPT2: Preferences = {**_DIVIDED_SCORES, **_BUFFER, **_LOWEST, "order": "bshd"}
_TYPED: Preferences = {"scores.back": "type_as", "softmax.upcast": "float", "softmax.back": "type_as"}
_UNSCALED: Preferences = {"scale.place": "none", "mask.kind": "add", "scores.transpose": "permute"}
_T5: Preferences = {**_UNSCALED, **_TYPED, "order": "bshd", "dropout": "dropout"}
_LLAMA: Preferences = {**_WIDE, "scale.place": "scores", "mask.kind": "add", "mask.shape": "ones"}
_BMM: Preferences = {"scale.place": "none", "scores.product": "flat", "scores.transpose": "positive"}
"""Products of three axes, of a query that was scaled before."""
_FOLDED: Preferences = {"scores.fold": "before", "scores.again": "flat"}
_CLIP: Preferences = {"scale.place": "q", "scale.divide": "mul", "scores.product": "flat", "softmax.upcast": "none"}
_FALCON: Preferences = {**_DIVIDED_SCORES, "mask.kind": "add", "mask.shape": "ones", "softmax.back": "to"}
_GPTJ: Preferences = {"mask.kind": "where", "mask.keep": "causal", "softmax.upcast": "none", "softmax.back": "to"}
_CACHE: Preferences = {"scale.place": "scores", "mask.kind": "none", "softmax.back": "to"}
_WHISPER: Preferences = {**_TRIANGLE, **_FLOAT, "scale.place": "both", "scores.transpose": "permute"}

_RMS_NORM: Norm = partial(rms_norm, around_one=True)
_GEMMA: dict[str, Any] = {"norm": _RMS_NORM, "act": "gelu", "scales": True, "causal": (None, "top_left")}
_PARALLEL: dict[str, Any] = {"norm": layer_norm, "act": "gelu", "parallel": True}
_GPTJ_LAYER = {**_PARALLEL, "grouping": "none", "partial": True}
_CROSSED = partial(language.write_layer, biases="o", crossed=True)
_T5_POSITIONS = partial(language.write_layer, norm=rms_norm, biases="", positions=True, act="relu")
_GPT_OSS: dict[str, Any] = {"sinks": True, "causal": ("top_left",), "window": 0.5, "bias": True}

FAMILIES: Mapping[str, Family] = {
    # ALBERT and BERT, two or three layers with shared or own weights.
    "albert": Family(1.2, _BERT, language.write_albert),
    # No preferences.
    "anyone": Family(40.0),
    # BART without a mask.
    "bart": Family(4.0, {**_BMM, **_NO_MASK, "order": "bsd"}),
    # BERT: scores divided by sqrt(head_dim), a mask over keys added, dropout on the weights.
    "bert": Family(10.0, _BERT),
    "bloom": Family(2.0, {**_WIDE, "mask.kind": "fill", "mask.fill": float("-inf")}, language.write_bloom),
    "clip": Family(2.0, {**_CLIP, **_FOLDED, **_TRIANGLE}, partial(language.write_layer, act="quick_gelu")),
    "cross_attention": Family(2.5, {**_SCALED_SCORES, "mask.kind": "none"}, _CROSSED),
    "deepseek": Family(2.5, {"fused": "sdpa", "sdpa.mask": "mask"}, cross.write_latent_attention),
    # DistilBERT: the query divided, scores filled with -inf where a mask of 0 and 1 is 0.
    "distilbert": Family(12.0, _DISTILBERT),
    # The first DistilBERT: scores divided instead of the query.
    "distilbert_scores": Family(3.0, {**_DISTILBERT, "scale.place": "scores"}),
    "dit": Family(1.5, {"fused": "sdpa", "sdpa.mask": "none", "mask.kind": "none"}, vision.write_dit),
    # One key head for all queries, attention and feed-forward in parallel.
    "falcon": Family(1.0, _FALCON, partial(language.write_decoder, grouping="one", **_PARALLEL)),
    "flex": Family(2.0, write=torch_calls.write_flex),
    # Softmax in float32, the product with the values in half precision.
    "float_softmax": Family(5.0, {**_FLOAT, "order": "bshd", "scale.divide": "div", "mask.kind": "none"}),
    # F.scaled_dot_product_attention.
    "fused": Family(5.0, {"fused": "sdpa"}),
    "fused_forms": Family(2.5, write=torch_calls.write_sdpa),
    # Gemma: 1 + weight in RMSNorm; the second version has a soft cap, the third norms of q and k.
    "gemma": Family(0.6, {**_SCALED_SCORES, **_WIDE}, partial(language.write_decoder, softcap=True, **_GEMMA)),
    "gemma3": Family(0.4, {**_SCALED_SCORES, **_WIDE}, partial(language.write_decoder, head_norm=_RMS_NORM, **_GEMMA)),
    # GPT-2: scores divided by a tensor, `where` with the lowest number under a causal buffer, keys and values returned.
    "gpt2": Family(12.0, {**_GPT2, "returns": "keys"}),
    # GPT-2 with an attention mask: `where` under a causal buffer, then a mask added.
    "gpt2_masked": Family(6.0, {**_GPT2, "order": "bhsd", "mask.kind": "where_and_add"}),
    # A sink per head, a window in every second layer.
    "gpt_oss": Family(0.6, {**_SCALED_SCORES, "softmax.back": "to"}, partial(language.write_decoder, **_GPT_OSS)),
    "gptj": Family(0.8, {**_DIVIDED_SCORES, **_GPTJ, **_LOWEST}, partial(language.write_decoder, **_GPTJ_LAYER)),
    "kv_cache": Family(3.0, _CACHE, caches.write_kv_cache),
    "linear_attention": Family(2.0, write=cross.write_linear_attention),
    "llama": Family(1.5, _LLAMA, language.write_decoder),
    "local_attention": Family(2.0, {"scale.place": "scores"}, cross.write_local_attention),
    # mBART: heads folded into the batch, products by bmm.
    "mbart": Family(6.0, {**_BMM, **_FOLDED, "order": "bhsd", "mask.kind": "add", "dropout": "none"}),
    # Llama with a sliding window.
    "mistral": Family(0.8, _LLAMA, partial(language.write_decoder, causal=("top_left", "bottom_right"), window=1.0)),
    "multihead": Family(2.5, write=torch_calls.write_multihead_attention),
    "paged_cache": Family(0.8, _CACHE, caches.write_paged_cache),
    # Qwen 3: a norm of each head of q and k before rotary positions; LayerNorm in vision models.
    "qwen": Family(0.6, _LLAMA, partial(language.write_decoder, head_norm=rms_norm)),
    "qwen_vision": Family(0.2, _LLAMA, partial(language.write_decoder, head_norm=layer_norm)),
    "rolling_cache": Family(0.8, _CACHE, caches.write_rolling_cache),
    "running_statistics": Family(0.5, write=caches.write_running_statistics),
    "slot_attention": Family(2.0, write=cross.write_slot_attention),
    # Sparse attention: of each query only the keys that rank highest, as an indexer ranks them.
    "sparse": Family(1.0, {"mask.kind": "fill", "mask.keep": "top", "mask.fill": float("-inf")}),
    "static_cache": Family(1.2, _CACHE, caches.write_static_cache),
    "strided": Family(3.0, {"scale.place": "scores"}, cross.write_strided),
    "swin": Family(2.5, {"softmax.upcast": "none"}, vision.write_swin),
    # T5: no scale, a bias of positions added, softmax in float32 and back.
    "t5": Family(10.0, _T5),
    # T5 decoding: no mask, keys and values returned.
    "t5_decoder": Family(4.0, {**_T5, "mask.kind": "none", "returns": "keys"}),
    "t5_positions": Family(1.0, {**_T5, "mask.kind": "none"}, _T5_POSITIONS),
    "transformer_layers": Family(2.0, write=torch_calls.write_transformer_layers),
    "visformer": Family(4.0, {**_SCALED_SCORES, **_NO_MASK, "order": "bhds"}, vision.write_visformer),
    "vit": Family(4.0, {**_SCALED_SCORES, **_NO_MASK}, vision.write_vit),
    # q and k are both scaled by head_dim ** -0.25, k has no bias.
    "whisper": Family(1.0, _WHISPER, partial(language.write_layer, biases="qvo")),
    "whisper_cross": Family(1.0, {**_WHISPER, "mask.kind": "none"}, partial(_CROSSED, biases="qvo")),
    "xcit": Family(1.5, write=vision.write_xcit),
}
"""By name, in alphabetical order: draws depend on it."""
