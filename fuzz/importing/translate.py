"""Translates the recorded calls of a module into the operations of a case, with sizes as numbers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuzz.importing import arithmetic, network, shapes
from fuzz.importing.call import Call, Reader, Untranslatable
from fuzz.importing.spellings import SPELLINGS
from fuzz.protocol.recording import Recorded, RecordedCall, RecordedTensor
from generators.errors import CaseError
from generators.program.case import Attr, Case, Input, Op, TensorType, Values, free_name
from generators.program.kept_places import shares_lengths
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.program.type_check import MAX_LINES, RESERVED, attributes, infer, make_op
from generators.program.values import COMPLEX, DTYPES, category

READERS: dict[str, Reader] = {**arithmetic.READERS, **shapes.READERS, **network.READERS}
KNOWN = frozenset({*SPELLINGS, *READERS})
"""The last parts of the names of all functions that are read."""


@dataclass(slots=True)
class Translation:
    """A recorded run as a program. `missing`: calls that no case can express, counted by function and reason."""

    recorded: Recorded
    refused: Mapping[int, str] = field(default_factory=dict)  # why calls are left out, by index
    ops: list[Op] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)  # by number of the tensor
    names: dict[int, str] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    autocast: str = ""
    views: list[Op] = field(default_factory=list)  # complex tensors from outside, which are inputs in their real form
    ends: list[int] = field(default_factory=list)  # tensors that left-out calls read
    unwritten: set[int] = field(default_factory=set)  # tensors of `empty`, whose bits say nothing
    calls: dict[str, int] = field(default_factory=dict)  # by operation: the index of the call that it is made of

    def case(self, returns: Sequence[int]) -> Case:
        """The case that returns these tensors. Raises `Untranslatable`."""
        named = tuple(dict.fromkeys(self._return(number) for number in (*returns, *self.ends)))
        inputs = sorted(self.inputs.values(), key=lambda item: item.parameter)
        mode = "training" if self.recorded.training else "inference"
        if len(inputs) + len(self.ops) > MAX_LINES:
            raise Untranslatable(f"{len(inputs) + len(self.ops)} inputs and operations; at most {MAX_LINES}")
        return Case((), tuple(inputs), (*self.views, *self.ops), named, mode, autocast=self.autocast or None)

    def name(self, number: int) -> str:
        """The name of a tensor. A tensor that no call has made becomes an input. Raises `Untranslatable`."""
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

    def leave_out(self, call: RecordedCall, why: str) -> None:
        """Count a call that no case can express. Tensors that it reads are returned, and its results become inputs."""
        function = call.function.removeprefix("torch.").replace("nn.functional.", "F.")
        self.missing[f"{function}: {why}".removesuffix(": ")] += 1
        read = [number for number in _list_numbers((call.args, call.kwargs)) if number in self.names]
        self.ends += [number for number in read if number not in self.unwritten]

    def _make_input(self, tensor: RecordedTensor, number: int) -> Input:
        if tensor.origin == "unseen":
            self.missing["a call that is no torch function, such as an autograd.Function"] += 1
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
        return Input(name, shape, tensor.dtype, values, layout, is_parameter, is_buffer, not is_constant)

    def free(self, hint: str) -> str:
        """A free name like `hint`."""
        plain = re.sub(r"[^a-z0-9_]+", "_", hint.lower()).strip("_")
        short = plain if len(plain) <= 24 else plain[-24:].partition("_")[2] or plain[-24:]
        short = short if short[:1].isalpha() else f"x{short}"
        return free_name(short, {*self.types, *RESERVED})

    def translate(self, call: RecordedCall, index: int) -> None:
        """Add call number `index`. Raises `Untranslatable`."""
        if self.recorded.training and not call.with_gradients:
            read = [self.recorded.tensors[n] for n in _list_numbers((call.args, call.kwargs))]
            if any(tensor.requires_grad for tensor in read):
                raise Untranslatable("no_grad within training")
        if index in self.refused:
            raise Untranslatable(self.refused[index])
        if call.autocast != self.autocast:
            raise Untranslatable("another autocast within the module")
        kept, current = len(self.ops), Call(self, call)
        try:
            made = READERS.get(current.function, _read_plainly)(current)
            self.unwritten.update(call.results if "empty" in current.function else ())
            self.calls |= {op.name: index for op in self.ops[kept:]}
            pairs = list(zip(call.results, made, strict=True))
            for number, name in pairs:
                self._require_type(name, self.recorded.tensors[number])
            self.names |= dict(pairs)
        except (Untranslatable, CaseError):
            del self.ops[kept:]
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            del self.ops[kept:]
            raise Untranslatable(f"a form that is not read ({type(error).__name__})") from error

    def _require_type(self, name: str, tensor: RecordedTensor) -> None:
        said = self.types[name]
        sizes = said.sizes({})
        if (sizes, said.dtype) != (tensor.shape, tensor.dtype):
            raise Untranslatable(f"gives {tensor.dtype} {list(tensor.shape)}, read as {said.dtype} {list(sizes)}")

    def emit(self, hint: str, kind: str, args: Sequence[str], attrs: Mapping[str, Attr]) -> str:
        """Add an operation and return its name. Raises `Untranslatable` and `CaseError`."""
        if kind not in OPS:
            raise Untranslatable(f"{kind} is no operation of cases")
        known = OPS[kind].attributes
        op = make_op(self.free(hint), kind, args, {key: value for key, value in attrs.items() if key in known})
        unknown = [key for key in attrs if key not in known and attrs[key] is not None]
        if unknown:
            raise Untranslatable(f"{', '.join(unknown)}")
        self.types[op.name] = infer(op, self.types, {}, self.autocast or None)
        attributes(op)
        self.ops.append(op)
        return op.name


def _read_plainly(call: Call) -> list[str]:
    """Read a call with fixed parameters."""
    if call.function not in SPELLINGS:
        raise Untranslatable("")
    return [call.read(*SPELLINGS[call.function])]


def _list_numbers(data: Any) -> list[int]:
    if isinstance(data, Mapping):
        return [data["tensor"]] if "tensor" in data else [n for value in data.values() for n in _list_numbers(value)]
    return [n for item in data for n in _list_numbers(item)] if isinstance(data, (list, tuple)) else []
