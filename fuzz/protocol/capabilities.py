"""What an attention function takes, as it declares it and as its signature says."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from fuzz.protocol.codec import decode

Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
Corner = Literal["top_left", "bottom_right"]
Option = Literal["mask", "bias", "causal", "window", "softcap", "alibi", "sinks", "dropout"]
DENSE_OPTIONS = ("mask", "bias", "dropout")
"""Options without a meaning where sequences have no common axes."""
Rounded = Literal["scores", "weights", "sums", "exponentials"]


@dataclass(frozen=True)
class Capabilities:
    """What a function takes, all of it when nothing is said. Sizes of values count as `head_dims` do.

    `options`: the keywords, by default those of its signature; `causal`: the corners.
    `rounds`: what it rounds to the inputs' dtype on the way, the weights (and gradients of scores) as flash kernels do,
    and the scores (and gradients of weights) as eager code does, the sums over queries that dk and dv are as CPU flash
    does; and with "exponentials" weights are off by up to 1e-4 systematically, as those of CPU flash are in low
    precision. It is held to that. `deterministic`: devices on which two runs are equal bit for bit, which is checked;
    `exact_relations`: those on which sums are taken in one order whatever the shape, so that relations between its
    outputs hold bit for bit (relation_table.py). `layout`: how sequences lie in memory; with "paged", `block_sizes` are
    those of the cache and `poison` is what its unwritten elements hold, NaN or large finite numbers. `refuses`: names
    of types of exceptions by which it refuses a case, besides NotImplementedError.
    """

    dtypes: tuple[Dtype, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    max_head_dim: int | None = None
    grouped: bool = True
    value_dim: bool = True
    lengths: bool = True
    training: bool = True
    devices: tuple[Device, ...] | None = None
    empty: bool = True
    max_scores: int | None = None
    options: tuple[Option, ...] | None = None
    causal: tuple[Corner, ...] | None = None
    rounds: tuple[Rounded, ...] = ("weights",)
    deterministic: tuple[Device, ...] = ("cpu", "cuda")
    exact_relations: tuple[Device, ...] = ()
    layout: Literal["dense", "packed", "paged"] = "dense"
    block_sizes: tuple[int, ...] = (16, 32)
    poison: Literal["nan", "finite"] = "nan"
    refuses: tuple[str, ...] = ()

    @classmethod
    def read(cls, declared: object) -> "Capabilities":
        """The capabilities a function carries. Raises `ValueError` for keys and values that mean nothing."""
        names = [field.name for field in fields(cls)]
        for key in declared if isinstance(declared, Mapping) else ():
            if key not in names:
                raise ValueError(f"unknown capability {key!r}: there are {', '.join(names)}")
        read = decode(cls, declared)
        return replace(read, training=False) if read.layout == "paged" else read

    def find_refusal(
        self,
        dtype: str,
        q: Sequence[int],
        k: Sequence[int],
        v: Sequence[int],
        *,
        options: Collection[str],
        causal: object,
        training: bool,
        device: str,
    ) -> str | None:
        """What of a call is outside of them; None when nothing is. `q`, `k`, `v`: [batch, heads, length, dim]."""
        head_dims, scores = {q[3], v[3]}, q[0] * q[1] * q[2] * k[2]
        unknown = [] if self.options is None else sorted({*options} - {*self.options})
        reasons = {
            f"dtype {dtype}": self.dtypes is not None and dtype not in self.dtypes,
            f"head_dim {q[3]}, value_dim {v[3]}": (
                (self.head_dims is not None and not head_dims <= {*self.head_dims})
                or (self.max_head_dim is not None and max(head_dims) > self.max_head_dim)
            ),
            "fewer key heads than query heads": not self.grouped and q[1] != k[1],
            "value_dim other than head_dim": not self.value_dim and len(head_dims) > 1,
            "kv_len other than seq_len": not self.lengths and q[2] != k[2],
            "gradients": not self.training and training,
            f"device {device}": self.devices is not None and device not in self.devices,
            "sizes of 0": not self.empty and 0 in (*q, *k, *v),
            f"{scores} scores": self.max_scores is not None and scores > self.max_scores,
            f"the parameter {', '.join(unknown)}": bool(unknown),
            f"causal {causal}": bool(causal) and self.causal is not None and causal not in self.causal,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)
