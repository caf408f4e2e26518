"""The case: a straight-line typed tensor program over named dimensions, as frozen data."""

import hashlib
import json
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from itertools import chain, count
from types import MappingProxyType
from typing import Annotated, Any

from generators.program.attention_options import Contract, ValueName
from generators.program.given import Given
from generators.program.sizes import Size
from generators.program.values import category
from generators.records import ALWAYS, APART, KEYED, SORTED, NameOf

Attr = bool | int | float | str | Size | tuple["Size | int", ...] | None
"""The value of an operation's attribute: a flag, number, word of a closed list, size, or a list of sizes or axes."""

SettingValue = bool | int | float | str  # the value of a setting
NumberValue = bool | int | float  # the value of a number that forward takes
_OwnName = Annotated[str, NameOf.DEFINED]
_ResultName = Annotated[str, NameOf.RESULT]
_ChangedName = Annotated[str, NameOf.CHANGED]
_OwnerName = Annotated[str, NameOf.VALUE]
_DimName = Annotated[str, NameOf.DIM]

MODES = ("inference", "inference_mode", "training", "training_on_sum")
"""Simplest first. Gradients of outputs are random in training; on the sum of the outputs they are one expanded 1."""
AUTOCAST = ("bfloat16", "float16")
AROUND = ("off", *AUTOCAST, *(f"{dtype}+uncached" for dtype in AUTOCAST), "kept")
"""The autocasts around a call: none; of a dtype, which without a cache casts a weight at each use; and that around the
call before, which both calls share."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value: its shape over the case's dimensions and its dtype's name."""

    shape: tuple[Size, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(s.value(dims) for s in self.shape)


@dataclass(frozen=True, slots=True)
class Values:
    """A distribution of `generators.program.values`, with its seed, and its scale and parameter if it has them.

    With `given` the input has exactly these values, and the distribution is what they resemble: edits that the given
    values do not survive leave it.
    """

    kind: Annotated[str, ALWAYS] = "normal"
    seed: Annotated[int, ALWAYS] = 0
    scale: float = 1.0
    param: float = 0.0
    given: Given | None = None


_FIRST = Size.of(0)


@dataclass(frozen=True, slots=True)
class SharedSlice:
    """The place of an argument in the memory of another input: a slice along an axis, as long as its own shape says.

    The other input is an argument, a parameter or a buffer. With `copied` the first call has a copy there, so that only
    later calls with `shares` share memory.
    """

    of: _OwnerName
    dim: int = 0
    start: Size = _FIRST
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that comes from outside: an argument of forward, or a parameter of the module.

    A `buffer` is a parameter that is not differentiated and may be written to. A `part` has the numbers of the input
    whose memory it shares, and no values or layout of its own.
    """

    name: _OwnName
    shape: tuple[Size, ...]
    dtype: str
    values: Annotated[Values, ALWAYS] = Values()
    layout: str = "contiguous"
    parameter: bool = False
    buffer: bool = False
    requires_grad: bool = True  # False: training takes no gradient of it
    shard: int | None = None  # the axis that is split over ranks, by subjects that have several
    second_shard: int | None = None  # the axis that is split over the second dimension of a mesh of ranks
    part: SharedSlice | None = None

    @property
    def shards(self) -> tuple[int | None, int | None]:
        """The axes that are split over the dimensions of a mesh."""
        return self.shard, self.second_shard

    @property
    def is_differentiated(self) -> bool:
        return self.requires_grad and category(self.dtype) == 2 and not self.is_buffer

    @property
    def is_buffer(self) -> bool:
        """Whether it is registered as a buffer; also true for parameters whose dtype is not floating."""
        return self.buffer or (self.parameter and category(self.dtype) != 2)

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Op:
    """A line of the program: the value it defines, the operation's kind, its arguments and attributes.

    Defaults of attributes are not stored, so equal programs have equal data.
    """

    name: _OwnName
    kind: str
    args: tuple[ValueName, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()

    def attr(self, name: str) -> Attr:
        """The stored value of the attribute; None if it has its default."""
        return dict(self.attrs).get(name)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the module or of an argument before a call. `kind`: of `generators.program.changes`."""

    kind: Annotated[str, ALWAYS]
    of: _ChangedName = ""  # the parameter, buffer, layer or argument; "" for the module
    to: _ChangedName = ""  # another parameter, or a dtype
    axis: int = 0


@dataclass(frozen=True, slots=True)
class LaterCall:
    """A later call of the same module, as differences from the first call. Gradients add up over calls."""

    sizes: tuple[tuple[Annotated[str, NameOf.VARYING], int], ...] = ()
    layouts: tuple[tuple[Annotated[str, NameOf.ARGUMENT], str], ...] = ()
    dtype: str = ""  # the new dtype of all arguments that share the dtype of the first floating argument
    values: str = "equal"  # `equal` numbers in fresh tensors, the `same` tensors, or `other` numbers
    under: str = ""  # `training` or `inference` (no gradients); or `no_grad` or `inference_mode` around the call
    reseeds: bool = False  # whether the random state is reset to that of the first call
    step: str = ""  # `sgd` or `adamw`: before the call this optimizer makes a step and clears the gradients
    changes: tuple[Change, ...] = ()  # made before the call
    numbers: tuple[tuple[Annotated[str, NameOf.NUMBER], NumberValue], ...] = ()
    shares: bool = False  # whether arguments that are copies of parts in the first call share memory in this call
    around: str = ""  # the autocast around this call, of `AROUND`; "": as around the first call
    apart: bool = False  # whether arguments that share memory in the first call are copies in this call


@dataclass(frozen=True, slots=True)
class NumberUse:
    """An attribute that a number stands for. `formula`: of `generators.program.numbers`."""

    op: _ResultName
    attribute: str
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that forward takes after its tensors. `value`: in the first call."""

    name: _OwnName
    value: NumberValue
    uses: tuple[NumberUse, ...]


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that a step of a loop hands to the next step. Outside of the loop, `next` is the value after the last."""

    start: ValueName  # the value that the first step reads; within the loop, that of the step before
    next: _ResultName  # an operation in the loop, of the same type


@dataclass(frozen=True, slots=True)
class Region:
    """A run of operations in a function of their own, by name. `kind`: of `generators.program.regions`."""

    kind: str
    ops: tuple[_ResultName, ...]
    over: _DimName = ""  # the dimension that a loop runs over
    option: str = ""  # one of `RegionKind.options`
    carries: tuple[Carry, ...] = ()
    reverse: bool = False  # whether a loop begins at the last row


@dataclass(frozen=True, slots=True)
class Earlier:
    """A case that runs before another case, in the same process and under the same subject."""

    case: Annotated["Case", APART]
    times: int = 1  # how often in a row


@dataclass(frozen=True)
class Case:
    """A straight-line program: dimensions, inputs and parameters, operations, returned values, and the mode.

    `autocast` is the dtype of a `torch.autocast` around the operations; such a case has no contracts. `calls` are
    later calls of the module. `checkpoint` is `full` if the backward pass recomputes the operations. `settings` are
    values by name, of `generators.program.settings`. Only subjects that compile with options use them. `before` are the
    cases that must run first for this case to fail, in order. `regions` are runs of operations that torch calls as a
    function. `setup` are changes of the module before its first call. `numbers` are arguments that are no tensors.
    `around` is the autocast around the first call, of `AROUND`, and `around_backward` says whether such autocasts are
    also around backward passes.
    """

    dims: Annotated[tuple[tuple[_DimName, int], ...], KEYED]
    inputs: Annotated[tuple[Input, ...], KEYED]
    ops: tuple[Op, ...]
    returns: tuple[ValueName, ...]
    mode: Annotated[str, ALWAYS] = "inference"
    dynamic: bool = False
    contracts: tuple[Contract, ...] = field(default=())
    autocast: str | None = None
    calls: tuple[LaterCall, ...] = ()
    checkpoint: str = ""
    settings: Annotated[tuple[tuple[str, SettingValue], ...], KEYED, SORTED] = ()
    before: tuple[Earlier, ...] = ()
    regions: tuple[Region, ...] = ()
    setup: tuple[Change, ...] = ()
    numbers: Annotated[tuple[Number, ...], KEYED] = ()
    around: str = ""
    around_backward: bool = False

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return MappingProxyType(dict(self.dims))

    @cached_property
    def arguments(self) -> tuple[Input, ...]:
        """The inputs that are no parameters, in the order of forward."""
        return tuple(item for item in self.inputs if not item.parameter)

    @cached_property
    def parts_of_module(self) -> frozenset[str]:
        """The arguments that are slices of parameters or buffers in some call."""
        own = {item.name for item in self.inputs if item.parameter}
        return frozenset(item.name for item in self.arguments if item.part and item.part.of in own)

    @property
    def is_sequence(self) -> bool:
        """Whether its text has a function `calls`, as inputs depend on the module or calls differ."""
        return bool(self.calls or self.setup or self.mode == "inference_mode" or self.around or self.parts_of_module)

    @cached_property
    def makers(self) -> Mapping[str, Op]:
        """The operations, by the names of their results."""
        return MappingProxyType({op.name: op for op in self.ops})

    @property
    def training(self) -> bool:
        """Whether gradients are taken and dropout is on."""
        return self.mode.startswith("training")

    @property
    def may_train(self) -> bool:
        """Whether some call of the module is in training."""
        return self.training or any(call.under == "training" for call in self.calls)

    @property
    def has_around(self) -> bool:
        """Whether there is an autocast around some call."""
        return bool(self.around) or any(call.around not in ("", "off") for call in self.calls)

    @property
    def is_cast_forward(self) -> bool:
        """Whether a call trains, and autocasts around calls are around forward alone."""
        return self.has_around and self.may_train and not self.around_backward

    @property
    def outer_autocast(self) -> str | None:
        """The dtype of the autocast that operations of the first call are under where no region is an autocast."""
        return self.autocast or self.around.partition("+")[0] or None

    @cached_property
    def has_mesh(self) -> bool:
        """Whether ranks are a mesh of two dimensions, over each of which axes are split."""
        by_inputs = any(item.second_shard is not None for item in self.inputs)
        return by_inputs or any(op.attr("second_shard") is not None for op in self.ops)

    @property
    def varies(self) -> bool:
        """Whether sizes are dynamic, or differ between calls."""
        return self.dynamic or any(call.sizes for call in self.calls)

    @cached_property
    def id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the canonical form: equal programs have equal ids."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    def canonical(self) -> str:
        """A text that equal cases share; the id is its hash. The order of dimensions and inputs does not count."""
        inputs = (
            [i.name, [str(s) for s in i.shape], i.dtype, i.values.kind, i.values.seed, _exact(i.values.scale)]
            + [
                i.layout,
                i.parameter,
                *_tell(i.values, "param"),
                *_tell(i, "buffer", "requires_grad", "shard", "second_shard"),
            ]
            + ([["given", _exact(i.values.given)]] if i.values.given else [])
            + ([["part", _exact(i.part)]] if i.part else [])
            for i in self.inputs
        )
        tails = {
            "settings": sorted(self.settings),
            "before": [[one.case.canonical(), one.times] for one in self.before],
            "regions": [_tell_region(one) for one in self.regions],
            "setup": self.setup,
            "numbers": self.numbers,
            "around": self.around,
            "around_backward": self.around_backward,
        }
        form = [
            sorted(self.dims),
            sorted(inputs),
            [[o.name, o.kind, list(o.args), sorted([k, _exact(v)] for k, v in o.attrs)] for o in self.ops],
            list(self.returns),
            self.mode,
            self.dynamic,
            _exact(self.contracts),
            *filter(None, [self.autocast]),
            *filter(None, [[_tell_call(call) for call in self.calls]]),
            *filter(None, [self.checkpoint]),
            *({name: _exact(value)} for name, value in tails.items() if value),
        ]
        return json.dumps(form, separators=(",", ":"))

    def dependencies(self, names: Collection[str], given: Collection[str] = ()) -> set[str]:
        """The values `names` and all values that they depend on; `given`: values to stop at, which are left out."""
        found = set(names).difference(given)
        for op in reversed(self.ops):
            if op.name in found:
                found.update(arg for arg in op.args if arg not in given)
        return found


def free_name(hint: str, taken: Container[str]) -> str:
    """`hint`, or `hint` with the first free number from 2 on."""
    return next(name for name in chain([hint], (f"{hint}{number}" for number in count(2))) if name not in taken)


def _tell(record: object, *names: str) -> list[str]:
    """`name:value` of each of these fields that has not its default."""
    given = ((name, getattr(record, name)) for name in names)
    defaults = {one.name: one.default for one in fields(record)}  # type: ignore[arg-type]
    return [f"{name}:{value}" for name, value in given if value != defaults[name]]


def _tell_call(call: LaterCall) -> list[Any]:
    """The fields of a call for `canonical`: from `changes` on those that are set, and what is before them."""
    told: list[Any] = _exact(call)[:-3]
    return (told if call.numbers else told[: -1 if call.changes else -2]) + _tell(call, "shares", "around", "apart")


def _tell_region(region: Region) -> list[Any]:
    """The fields of a region, without those after `over` that have their defaults."""
    told = [*_exact(region)[:3], *filter(None, [region.option]), *_tell(region, "reverse")]
    return told + [_exact(region.carries)] * bool(region.carries)


def _exact(value: Any) -> Any:
    """A JSON form that distinguishes 1, 1.0 and True and keeps every bit of a float."""
    if isinstance(value, float):
        return f"f{value.hex()}"
    if isinstance(value, Size):
        return f"s{value}"
    if is_dataclass(value):
        return [_exact(getattr(value, one.name)) for one in fields(value)]
    return [_exact(item) for item in value] if isinstance(value, (tuple, list)) else value
