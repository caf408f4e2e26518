"""The implementations that are asked, with their versions and documentation. They run on the CPU."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from kernels.adapters import read_window

Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Implementation:
    """An implementation of attention."""

    name: str
    note: str
    packages: tuple[str, ...]
    load: Callable[[], Attend]
    """Its function, which takes q, k, v, `scale` and options as in docs/kernels.md, also outside of its capabilities.
    Raises ImportError."""
    load_logsumexp: Callable[[], Attend] | None = None
    """The same with the natural logsumexp, [batch, heads, seq_len], as result."""
    document: Callable[[], str] | None = None
    """Its documentation."""

    def tell_versions(self) -> str:
        return ", ".join(f"{package} {version(package)}" for package in self.packages)

    @property
    def is_installed(self) -> bool:
        try:
            self.tell_versions()
        except PackageNotFoundError:
            return False
        return True


def _adapt(module: str, name: str = "attention") -> Callable[[], Attend]:
    """An adapter without its refusals."""
    return lambda: inspect.unwrap(getattr(importlib.import_module(f"kernels.adapters.{module}"), name))


def _load_sdpa(backends: Sequence[SDPBackend]) -> Attend:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
        causal: str | None = None,
    ) -> Tensor:  # fmt: skip
        added, grouped = mask if bias is None else bias, k.shape[1] != q.shape[1]
        with sdpa_kernel([*backends]):
            return scaled_dot_product_attention(
                q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=grouped
            )

    return attend


def _load_flex(result: str = "out") -> Attend:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        batch, heads, rows, columns = *q.shape[:3], k.shape[2]
        block_mask = score_mod = None
        if mask is not None:
            kept = mask.expand(batch, heads, rows, columns)
            block_mask = create_block_mask(
                lambda b, h, i, j: kept[b, h, i, j], batch, heads, rows, columns, device="cpu"
            )
        if bias is not None:
            added = bias.expand(batch, heads, rows, columns)
            score_mod = lambda s, b, h, i, j: s + added[b, h, i, j]  # noqa: E731
        out, aux = flex_attention(
            q, k, v, score_mod, block_mask, scale, k.shape[1] != q.shape[1], return_aux=AuxRequest(lse=True)
        )
        found = out if result == "out" else aux.lse
        assert isinstance(found, Tensor)
        return found

    return attend


def _load_flash_logsumexp() -> Attend:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, causal: str | None = None
    ) -> Tensor:
        added = None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        added = None if added is None else added.expand(*q.shape[:3], k.shape[2])
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        found: Tensor = flash(q, k, v, 0.0, causal is not None, attn_mask=added, scale=scale)[1]
        return found

    return attend


def _load_jax_logsumexp() -> Attend:
    jax = importlib.import_module("jax")

    def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None) -> Tensor:
        dense = [jax.dlpack.from_dlpack(x.transpose(1, 2).contiguous()) for x in (q, k, v)]
        kept = None if mask is None else jax.numpy.asarray(mask[None, None].numpy())
        _, found = jax.nn.dot_product_attention(*dense, mask=kept, scale=scale, return_residual=True)
        return torch.utils.dlpack.from_dlpack(found).transpose(1, 2)

    return attend


def _load_torch_onnx() -> Attend:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, mask: Tensor | None = None, bias: Tensor | None = None,
        causal: str | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        added = mask if bias is None else bias
        out: Tensor = torch.onnx.ops.attention(
            q, k, v, added, is_causal=causal is not None, scale=scale, softcap=softcap or 0.0
        )[0]
        return out

    return attend


def _load_triton(result: str = "out") -> Attend:
    module = importlib.import_module("kernels.attention")
    if result == "out":
        attention: Attend = module.attention
        return attention

    def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
        settings = module.Settings(scale, 0.0, *read_window(None, None), 0, 0.0, 1.0, 0)
        found: Tensor = module.attention_forward(q, k, v, None, mask, None, None, settings)[1]
        return found

    return attend


def _document(module: str, name: str) -> Callable[[], str]:
    def read() -> str:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        return value.__doc__ or ""

    return read


def _document_onnx(opset: int) -> Callable[[], str]:
    def read() -> str:
        schema = importlib.import_module("onnx").defs.get_schema("Attention", opset)
        attributes = (attribute.description for attribute in schema.attributes.values())
        return " ".join([schema.doc, *attributes, *(item.description for item in schema.inputs)])

    return read


_SDPA = "scaled_dot_product_attention"
_TORCH, _ONNX = ("torch",), ("onnx",)
IMPLEMENTATIONS = [
    Implementation(
        "SDPA math",
        f"`F.{_SDPA}` on the backend MATH",
        _TORCH,
        lambda: _load_sdpa([SDPBackend.MATH]),
        document=_document("torch.nn.functional", _SDPA),
    ),
    Implementation(
        "SDPA flash",
        "the same on FLASH_ATTENTION, or on MATH where that takes no such call",
        _TORCH,
        lambda: _load_sdpa([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
        _load_flash_logsumexp,
    ),
    Implementation(
        "flex",
        "`flex_attention` in eager; a mask as `block_mask`, a bias by `score_mod`",
        _TORCH,
        _load_flex,
        lambda: _load_flex("logsumexp"),
    ),
    Implementation(
        "torch.onnx",
        "`torch.onnx.ops.attention` in eager",
        _TORCH,
        _load_torch_onnx,
        document=_document("torch.onnx.ops", "attention"),
    ),
    Implementation(
        "Triton",
        "our `kernels.attention`, in Triton's interpreter",
        ("triton",),
        _load_triton,
        lambda: _load_triton("logsumexp"),
    ),
    Implementation(
        "Keras",
        "`keras.ops.dot_product_attention` on the backend torch",
        ("keras", "torch"),
        _adapt("keras"),
        document=_document("keras", "ops.dot_product_attention"),
    ),
    Implementation(
        "JAX",
        "`jax.nn.dot_product_attention`, without x64",
        ("jax",),
        _adapt("jax"),
        _load_jax_logsumexp,
        _document("jax", "nn.dot_product_attention"),
    ),
    Implementation(
        "MLX", f"`mlx.core.fast.{_SDPA}`", ("mlx",), _adapt("mlx"), document=_document("mlx.core", f"fast.{_SDPA}")
    ),
    Implementation(
        "ONNX 23",
        "`Attention` of opset 23 in the reference evaluator",
        _ONNX,
        _adapt("onnx", "attention_23"),
        document=_document_onnx(23),
    ),
    Implementation("ONNX 24", "the same of opset 24", _ONNX, _adapt("onnx"), document=_document_onnx(24)),
    Implementation("ORT", "the same in ONNX Runtime", ("onnxruntime",), _adapt("onnx", "onnxruntime")),
    Implementation("OpenVINO", "the same in OpenVINO, hint f32", ("openvino",), _adapt("onnx", "openvino")),
]
