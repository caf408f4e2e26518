"""The program of a case while recorded calls are added to it, with sizes as numbers."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from fuzz.protocol.recording import Recorded, RecordedTensor
from generators.program.case import Attr, Case, Input, Op, Region, SharedSlice, TensorType, Values, free_name
from generators.program.kept_places import shares_lengths
from generators.program.ops import OPS, make_op
from generators.program.sizes import Size
from generators.program.type_check import MAX_LINES, RESERVED, attributes, infer
from generators.program.values import COMPLEX, DTYPES, category


class Untranslatable(Exception):
    """A call that no case can express; the text says why, in a few words."""


@dataclass(slots=True)
class ImportedProgram:
    """A recorded run as a program. Its methods raise `Untranslatable`."""

    recorded: Recorded
    autocast: str = ""  # around the whole
    cast: str = ""  # the autocast around the call that is read
    casts: dict[str, str] = field(default_factory=dict)  # by operation, in the order of the program
    ops: list[Op] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)  # by number of the tensor
    names: dict[int, str] = field(default_factory=dict)  # of all tensors, by number
    types: dict[str, TensorType] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)  # calls that no case can express, by function and reason
    views: list[Op] = field(default_factory=list)  # complex tensors from outside, which are inputs in their real form

    def case(self, returns: Sequence[int]) -> Case:
        """The case that returns these tensors."""
        named = tuple(dict.fromkeys(self._return(number) for number in returns))
        inputs = sorted(self.inputs.values(), key=lambda item: item.parameter)
        mode = "training" if self.recorded.training else "inference"
        if len(inputs) + len(self.ops) > MAX_LINES:
            raise Untranslatable(f"{len(inputs) + len(self.ops)} inputs and operations; at most {MAX_LINES}")
        whole, regions = self.autocast or None, tuple(self._list_regions())
        return Case((), tuple(inputs), (*self.views, *self.ops), named, mode, autocast=whole, regions=regions)

    def _list_regions(self) -> Iterator[Region]:
        """The runs of operations under another autocast than that of the whole."""
        for cast, ops in groupby(self.ops, lambda op: self.casts[op.name]):
            if cast != self.autocast:
                yield Region("autocast", tuple(op.name for op in ops), option=cast or "off")

    def name(self, number: int) -> str:
        """The name of a tensor. A tensor that no call has made becomes an input."""
        if number not in self.names:
            tensor = self.recorded.tensors[number]
            self.inputs[number] = item = self._make_input(tensor, number)
            self.names[number], self.types[item.name] = item.name, item.type
            if tensor.dtype == COMPLEX:
                self.views.append(make_op(self.free(f"{item.name}_complex"), "view_as_complex", [item.name], {}))
                self.names[number] = self.views[-1].name
                self.types[self.views[-1].name] = infer(self.views[-1], self.types, {})
        return self.names[number]

    def _return(self, number: int) -> str:
        """The name of a tensor that is returned: of a complex tensor its real form."""
        name = self.name(number)
        if self.types[name].dtype == COMPLEX:
            self.names[number] = name = self.emit(name, "view_as_real", [name], {})
        return name

    def _make_input(self, tensor: RecordedTensor, number: int) -> Input:
        if tensor.origin == "unseen":
            self.missing["a call that is no torch function, such as an autograd.Function or torch.vmap"] += 1
        if tensor.dtype == COMPLEX:
            tensor = replace(tensor, shape=(*tensor.shape, 2), dtype="float32", layout="contiguous")
        if tensor.dtype not in DTYPES:
            raise Untranslatable(f"dtype {tensor.dtype}")
        is_parameter = tensor.origin in ("parameter", "buffer")
        shape = tuple(map(Size.of, tensor.shape))
        layout = "contiguous" if is_parameter else tensor.layout
        # Padding and documents have the same lengths in all tensors.
        values = Values(tensor.kind, 0 if shares_lengths(tensor.kind) else number, tensor.scale, tensor.param)
        is_buffer = tensor.origin == "buffer" and category(tensor.dtype) == 2
        constant = tensor.origin != "buffer" and category(tensor.dtype) == 2 and not tensor.requires_grad
        is_constant = constant and self.recorded.training
        name = self.free(tensor.name or "given")
        if tensor.shared is not None and tensor.shared.dim is not None:
            part = SharedSlice(self.name(tensor.shared.of), tensor.shared.dim, Size.of(tensor.shared.start))
            return Input(name, shape, tensor.dtype, requires_grad=not is_constant, part=part)
        if tensor.shared is not None:
            self.missing["an argument in memory that is written, otherwise than as a slice of another tensor"] += 1
        return Input(name, shape, tensor.dtype, values, layout, is_parameter, is_buffer, not is_constant)

    def free(self, hint: str) -> str:
        """A free name like `hint`."""
        plain = re.sub(r"[^a-z0-9_]+", "_", hint.lower()).strip("_")
        short = plain if len(plain) <= 24 else plain[-24:].partition("_")[2] or plain[-24:]
        short = short if short[:1].isalpha() else f"x{short}"
        return free_name(short, {*self.types, *RESERVED})

    def emit(self, hint: str, kind: str, args: Sequence[str], attrs: Mapping[str, Attr]) -> str:
        """Add an operation and return its name. Raises also `CaseError`."""
        if kind not in OPS:
            raise Untranslatable(f"{kind} is no operation of cases")
        known = OPS[kind].attributes
        op = make_op(self.free(hint), kind, args, {key: value for key, value in attrs.items() if key in known})
        unknown = [key for key in attrs if key not in known and attrs[key] is not None]
        if unknown:
            raise Untranslatable(f"{', '.join(unknown)}")
        self.types[op.name] = infer(op, self.types, {}, self.cast or None)
        self.casts[op.name] = self.cast
        attributes(op)
        self.ops.append(op)
        return op.name
