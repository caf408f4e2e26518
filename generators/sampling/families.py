"""The families of models, and how each writes attention. A new family is a row of FAMILIES."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from generators.sampling import writers
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices, Preferences

FamilyWriter = Callable[[Builder, Choices], list[str]]
"""Writes a program and returns the names of the values that it returns, the output first."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models writes attention."""

    weight: float  # how often it is drawn, relative to other families
    preferences: Preferences = field(default_factory=dict)
    """Preferred outcomes, by the argument `name` of `Choices.choose` and `Choices.choose_default`."""
    write: FamilyWriter | None = None
    """Writes the whole program, in place of the generator. `Builder.dims` has B, H, S, T, D and V; it may change or add
    dimensions."""
    portable: float | None = None  # the weight for compilers of inference programs, if it is another


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
_BMM: Preferences = {"scale.place": "none", "scores.product": "flat", "scores.transpose": "positive"}
"""bmm over [B * H, S, D]. The query is scaled beforehand."""
_FOLDED: Preferences = {"scores.fold": "before", "scores.again": "flat"}
_CLIP: Preferences = {"scale.place": "q", "scale.divide": "mul", "scores.product": "flat", "softmax.upcast": "none"}
_CACHE: Preferences = {"scale.place": "scores", "mask.kind": "none", "softmax.back": "to"}
_WHISPER: Preferences = {**_TRIANGLE, **_FLOAT, "scale.place": "both", "scores.transpose": "permute"}
_BLOCK: Preferences = {"module": "block", "residual": "pre"}
_DECODER: Preferences = {**_BLOCK, "norm": "rms", "positions": "rotary", "projection": "grouped"}
_LLAMA: Preferences = {**_DECODER, **_WIDE, "scale.place": "scores", "mask.kind": "add", "mask.shape": "ones"}
_GPTJ: Preferences = {"mask.kind": "where", "mask.keep": "causal", "softmax.upcast": "none", "softmax.back": "to"}

FAMILIES: Mapping[str, Family] = {
    # ALBERT: layers without feed-forward.
    "albert": Family(3.0, {**_BERT, "module": "block", "residual": "post", "norm": "layer", "layers": 2}),
    # No preferences.
    "anyone": Family(40.0),
    # BART without a mask.
    "bart": Family(4.0, {**_BMM, **_NO_MASK, "order": "bsd"}),
    # BERT: scores divided by sqrt(head_dim), a mask over keys added, dropout on the weights.
    "bert": Family(10.0, _BERT),
    "clip": Family(4.0, {**_CLIP, **_FOLDED, **_TRIANGLE}),
    # Keys of another length than queries: diffusion models, Whisper's decoder.
    "cross_attention": Family(4.0, {**_SCALED_SCORES, **_BLOCK, "projection": "context", "mask.kind": "none"}),
    # DistilBERT: the query divided, scores filled with -inf where a mask of 0 and 1 is 0.
    "distilbert": Family(12.0, _DISTILBERT),
    # The first DistilBERT: scores divided instead of the query.
    "distilbert_scores": Family(3.0, {**_DISTILBERT, "scale.place": "scores"}),
    "flex": Family(7.0, write=writers.write_flex),
    # Softmax in float32, the product with the values in half precision.
    "float_softmax": Family(5.0, {**_FLOAT, "order": "bshd", "scale.divide": "div", "mask.kind": "none"}),
    # F.scaled_dot_product_attention.
    "fused": Family(5.0, {"fused": "sdpa"}, portable=15.0),
    # Its mask has any shape that broadcasts; `sample` draws these two for compilers of inference programs alone.
    "fused_causal": Family(0.0, {"fused": "sdpa", "sdpa.mask": "causal"}, portable=6.0),
    "fused_masked": Family(0.0, {"fused": "sdpa", "sdpa.mask": "mask", "mask.shape": "any"}, portable=10.0),
    # GPT-2: scores divided by a tensor, `where` with the lowest number under a causal buffer, keys and values returned.
    "gpt2": Family(12.0, {**_GPT2, "returns": "keys"}),
    # GPT-2 with an attention mask: `where` under a causal buffer, then a mask added.
    "gpt2_masked": Family(6.0, {**_GPT2, "order": "bhsd", "mask.kind": "where_and_add"}),
    "gptj": Family(1.5, {**_DIVIDED_SCORES, **_DECODER, "projection": "separate", **_GPTJ, **_LOWEST}),
    "kv_cache": Family(3.0, _CACHE, writers.write_kv_cache),
    # RetNet, gated linear attention and their like.
    "linear_attention": Family(2.8, write=writers.write_linear_attention, portable=0.0),
    "llama": Family(6.0, _LLAMA),
    # mBART: heads folded into the batch, products by bmm.
    "mbart": Family(6.0, {**_BMM, **_FOLDED, "order": "bhsd", "mask.kind": "add", "dropout": "none"}),
    "multihead": Family(4.1, write=writers.write_multihead_attention),
    # A norm whose mean and variance are kept in buffers.
    "running_statistics": Family(1.0, {**_BLOCK, "norm": "running"}),
    # The softmax over queries, the slots.
    "slot_attention": Family(2.0, {**_NO_MASK, "scale.place": "none", "softmax.axis": -2}),
    # Sparse attention: each query sees all keys except for listed keys.
    "sparse": Family(1.0, {"mask.kind": "fill", "mask.keep": "listed", "mask.fill": float("-inf")}),
    "static_cache": Family(1.2, _CACHE, writers.write_static_cache),
    # q, k and v as views of wider inputs.
    "strided": Family(3.0, {"scale.place": "scores", "order": "bhsd", "heads.view": "view"}),
    # T5: no scale, a bias of positions added, softmax in float32 and back.
    "t5": Family(10.0, _T5),
    # T5 decoding: no mask, keys and values returned.
    "t5_decoder": Family(4.0, {**_T5, "mask.kind": "none", "returns": "keys"}),
    "transformer_layers": Family(2.0, write=writers.write_transformer_layers),
    # Visformer: heads before features, as a convolution leaves them.
    "visformer": Family(4.0, {**_SCALED_SCORES, **_NO_MASK, "order": "bhds"}),
    "vit": Family(5.0, {**_SCALED_SCORES, **_NO_MASK, **_BLOCK, "norm": "layer", "projection": "packed"}),
    # q and k are both scaled by head_dim ** -0.25.
    "whisper": Family(2.0, _WHISPER),
}
"""By name, in alphabetical order. Draws depend on the order."""
