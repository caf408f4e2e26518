"""The calls that an attention function takes, by its declaration and its signature."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from generators.program.attention_options import OPTIONS
from generators.records import decode

Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
Corner = Literal["top_left", "bottom_right"]
Rounded = Literal["scores", "weights", "sums", "backward_weights", "exponentials"]


@dataclass(frozen=True)
class Capabilities:
    """The calls that a function takes, and how it rounds and refuses; by default it takes all calls. docs/kernels.md
    explains the keys. In a worker, `options` only holds keywords of the signature."""

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
    options: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    causal: tuple[Corner, ...] | None = None
    rounds: tuple[Rounded, ...] = ("weights",)
    deterministic: tuple[Device, ...] = ("cpu", "cuda")
    layout: Literal["dense", "packed", "paged"] = "dense"
    block_sizes: tuple[int, ...] = (16, 32)
    poison: Literal["nan", "finite"] = "nan"
    refuses: tuple[str, ...] = ()

    @classmethod
    def read(cls, declared: object) -> "Capabilities":
        """The capabilities that a function declares. Raises `ValueError` for unknown keys and values."""
        names = [field.name for field in fields(cls)]
        for key in declared if isinstance(declared, Mapping) else ():
            if key not in names:
                raise ValueError(f"unknown capability {key!r}: there are {', '.join(names)}")
        read = decode(cls, declared)
        for option in (*(read.options or ()), *read.needs):
            if option not in OPTIONS:
                raise ValueError(f"unknown option {option!r}: there are {', '.join(OPTIONS)}")
        return replace(read, training=False) if read.layout == "paged" else read

    def find_refusal(
        self, dtype: str, shapes: Iterable[Sequence[int]], options: Mapping[str, object], *, training: bool, device: str
    ) -> str | None:
        """The first property of a call that the function does not take, or None.

        shapes: of q, k and v, each [batch, heads, length, dim].
        """
        q, k, v = shapes
        head_dims, scores, causal = {q[3], v[3]}, q[0] * q[1] * q[2] * k[2], options.get("causal")
        missing = sorted({*self.needs} - {*options})
        unknown = () if self.options is None else sorted({*options} - {"scale", *self.options})
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
            f"no {', '.join(missing)}": bool(missing),
            f"causal {causal}": self.causal is not None and causal not in (None, *self.causal),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)
