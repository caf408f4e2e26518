"""An attention function: what it declares, and which calls are outside of that."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.check.exceptions import SubjectError, Unsupported
from fuzz.check.oracle.constants import LOWEST_FILL
from fuzz.check.process_state import restore_state

Function = Callable[..., Any]

DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")
ROUNDS = ("scores", "weights", "sums", "exponentials")
LAYOUTS = {
    "dense": (),
    "packed": ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    "paged": ("cu_seqlens_q", "seqused_k", "block_table", "max_seqlen_q", "max_seqlen_k"),
}
"""The keywords that every call in a layout has."""


@dataclass(frozen=True)
class Capabilities:
    """What a function takes, all of it when nothing is said. Sizes of values count as `head_dims` do.

    `rounds`: what it rounds to the inputs' dtype on the way, the weights (and gradients of scores) as flash kernels do,
    and the scores (and gradients of weights) as eager code does, the sums over queries that dk and dv are as CPU flash
    does; and with "exponentials" weights are off by up to 1e-4 systematically, as those of CPU flash are in low
    precision. It is held to that. `deterministic`: devices on which two runs are equal bit for bit, which is checked;
    `exact_relations`: those on which sums are taken in one order whatever the shape, so that relations between its
    outputs hold bit for bit (relation_table.py). `layout`: how sequences lie in memory; with "paged", `block_sizes` are
    those of the cache and `poison` is what its unwritten elements hold, NaN or large finite numbers. `refuses`: names
    of types of exceptions by which it refuses a case, besides NotImplementedError.
    """

    dtypes: tuple[str, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    max_head_dim: int | None = None
    grouped: bool = True
    value_dim: bool = True
    lengths: bool = True
    training: bool = True
    devices: tuple[str, ...] | None = None
    empty: bool = True
    max_scores: int | None = None
    rounds: tuple[str, ...] = ("weights",)
    deterministic: tuple[str, ...] = DEVICES
    exact_relations: tuple[str, ...] = ()
    layout: str = "dense"
    block_sizes: tuple[int, ...] = (16, 32)
    poison: str = "nan"
    refuses: tuple[str, ...] = ()

    @classmethod
    def read(cls, declared: object) -> "Capabilities":
        """The capabilities a function carries. Raises `SubjectError` for keys and values that mean nothing."""
        if not isinstance(declared, Mapping):
            raise SubjectError(f"capabilities is {declared!r}, not a mapping")
        for key, value in declared.items():
            if key not in _EXPECTED:
                names = ", ".join(field.name for field in fields(cls))
                raise SubjectError(f"unknown capability {key!r}: there are {names}")
            is_expected, expected = _EXPECTED[key]
            if not is_expected(value):
                raise SubjectError(f"capability {key} is {value!r}, not {expected}")
        given: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in declared.items()}
        if given.get("layout") == "paged":
            given["training"] = False
        return cls(**given)

    def refusal(self, q: Tensor, k: Tensor, v: Tensor, *, training: bool) -> str | None:
        """Why a call is outside of them; None when it is not."""
        dtype = str(q.dtype).removeprefix("torch.")
        head_dims = {q.shape[3], v.shape[3]}
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        reasons = {
            f"dtype {dtype}": self.dtypes is not None and dtype not in self.dtypes,
            f"head_dim {q.shape[3]}, value_dim {v.shape[3]}": (
                (self.head_dims is not None and not head_dims <= set(self.head_dims))
                or (self.max_head_dim is not None and max(head_dims) > self.max_head_dim)
            ),
            "fewer key heads than query heads": not self.grouped and q.shape[1] != k.shape[1],
            "value_dim other than head_dim": not self.value_dim and len(head_dims) > 1,
            "kv_len other than seq_len": not self.lengths and q.shape[2] != k.shape[2],
            "gradients": not self.training and training,
            f"device {q.device.type}": self.devices is not None and q.device.type not in self.devices,
            "sizes of 0": not self.empty and not (q.numel() and k.numel() and v.numel()),
            f"{scores} scores": self.max_scores is not None and scores > self.max_scores,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _tuple_of(is_member: Callable[[Any], bool], members: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, (tuple, list)) and all(map(is_member, value)), f"a tuple of {members}"


def _some_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    return _tuple_of(words.__contains__, ", ".join(words))


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in words, f"one of {', '.join(words)}"


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dtypes": _some_of(*DTYPES),
    **dict.fromkeys(("head_dims", "block_sizes"), _tuple_of(_is_count, "positive integers")),
    "layout": _one_of(*LAYOUTS),
    "poison": _one_of("nan", "finite"),
    "rounds": _some_of(*ROUNDS),
    "refuses": _tuple_of(lambda name: isinstance(name, str), "names of exceptions"),
    **dict.fromkeys(("devices", "deterministic", "exact_relations"), _some_of(*DEVICES)),
    **dict.fromkeys(("max_head_dim", "max_scores"), (_is_count, "a positive integer")),
    **dict.fromkeys(
        ("grouped", "value_dim", "lengths", "training", "empty"),
        (lambda value: isinstance(value, bool), "True or False"),
    ),
}


@dataclass(frozen=True)
class Attention:
    """An attention function, imported by `load` when it is first needed, which may raise `SubjectError`.

    compiled: it is called by compiled code, which takes it in, and has no guarded memory.
    """

    load: Callable[[], Function]
    compiled: bool = False

    @cached_property
    def function(self) -> Function:
        """The function."""
        try:
            return self.load()
        except ImportError as error:
            raise SubjectError(f"can't be imported: {' '.join(str(error).split())}") from error

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it takes."""
        return Capabilities.read(getattr(self.function, "capabilities", {}))

    def check(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, object], *, training: bool) -> None:
        """Raise `Unsupported` for a call that is outside of what it declares."""
        reason = self.capabilities.refusal(q, k, v, training=training)
        if reason is not None:
            raise Unsupported(f"it does not take {reason}")
        parameters = inspect.signature(self.function).parameters
        if all(item.kind is not inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
            for name in (name for name in options if name not in parameters):
                raise Unsupported(f"it has no parameter {name}")


def call_checked(function: Function, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """What a function gives. Raises TypeError for anything but a tensor of the shape, dtype and device that follow."""
    with restore_state():
        out = function(q, k, v, **options)
    if not isinstance(out, Tensor):
        raise TypeError(f"it returned {type(out).__name__}, not a tensor")
    expected = [*q.shape[:-1], v.shape[-1]]
    if list(out.shape) != expected or out.dtype != q.dtype or out.device != q.device:
        raise TypeError(
            f"it returned {list(out.shape)} of {out.dtype} on {out.device}, "
            f"expected {expected} of {q.dtype} on {q.device}"
        )
    return out


def fill_matters(fill: float, mask: object, causal: object, columns: int) -> bool:
    """Whether a finite `fill` differs from -inf: with it, a row that keeps no key gives the mean of v."""
    if fill == float("-inf") or not isinstance(mask, Tensor):
        return False
    if fill > LOWEST_FILL or causal is not None or mask.dtype != torch.bool:
        return True
    return columns == 0 or not bool(mask.any(-1).all())


def load_sdpa(backend: str) -> Function:
    """`F.scaled_dot_product_attention` on a backend ("MATH"), with the signature of attention functions."""
    chosen = getattr(SDPBackend, backend)

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: str | None = None,
    ) -> Tensor:
        added = mask if bias is None else bias
        if causal == "bottom_right":
            raise Unsupported("it does not take causal from the bottom right")
        if sum(item is not None for item in (mask, bias, causal)) > 1:
            raise Unsupported("it takes one of mask, bias and causal")
        if bias is not None and bias.dtype != q.dtype:
            raise Unsupported(f"it does not take a bias of {bias.dtype} for q of {q.dtype}")
        if added is not None:
            added = added.reshape((1,) * (4 - added.dim()) + added.shape)
        try:
            with sdpa_kernel([chosen]):
                return nn.functional.scaled_dot_product_attention(
                    q, k, v, added, is_causal=causal is not None, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
                )
        except RuntimeError as error:
            if any(words in str(error) for words in _REFUSALS):
                raise Unsupported("the backend has no kernel for this case") from error
            raise

    # On CPU, flash adds up dk and dv in the inputs' dtype, block by block, and takes a cubic for the exponential.
    flash = ("weights", "sums", "exponentials")
    rounds = flash if chosen is SDPBackend.FLASH_ATTENTION else ("weights",)
    # On CUDA the backward passes of all but MATH add up dq with atomics, or may.
    repeats = DEVICES if chosen is SDPBackend.MATH else ("cpu",)
    attention.capabilities = {"rounds": rounds, "deterministic": repeats}  # type: ignore[attr-defined]
    return attention


#: The second is what the memory-efficient backend says of a bias that is expanded along keys.
_REFUSALS = ("No available kernel", "(*bias): last dimension must be contiguous")
