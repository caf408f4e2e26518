"""Translates the recorded calls of a module into the operations of a case."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuzz.importing import arithmetic, network, shapes
from fuzz.importing.call import ImportedCall, Reader
from fuzz.importing.kinds import READABLE
from fuzz.importing.program import ImportedProgram, Untranslatable
from fuzz.protocol.recording import Recorded, RecordedCall, RecordedTensor
from generators.errors import CaseError
from generators.program.case import Case

READERS: dict[str, Reader] = {**arithmetic.READERS, **shapes.READERS, **network.READERS}
KNOWN = READABLE | READERS.keys()
"""The last parts of the names of all functions that are read."""


@dataclass(slots=True)
class Translation:
    """A recorded run as a program."""

    program: ImportedProgram
    refused: Mapping[int, str]  # why calls are left out, by index
    ends: list[int] = field(default_factory=list)  # tensors that left-out calls read
    unwritten: set[int] = field(default_factory=set)  # tensors of `empty`, whose bits say nothing
    calls: dict[str, int] = field(default_factory=dict)  # by operation: the index of the call that it is made of

    def case(self) -> Case:
        """The case that returns the results of the run. Raises `Untranslatable`."""
        return self.program.case((*self.program.recorded.returns, *self.ends))

    def add(self, call: RecordedCall, index: int) -> None:
        """Add call number `index`, or leave it out."""
        kept = len(self.program.ops)
        try:
            self._require_readable(call, index)
            self._read(call, index)
        except Untranslatable as error:
            why = str(error)
        except CaseError as error:
            why = error.mistake
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            why = f"a form that is not read ({type(error).__name__})"
        else:
            return
        del self.program.ops[kept:]
        self._leave_out(call, why)

    def _leave_out(self, call: RecordedCall, why: str) -> None:
        """Count a call that no case can express. Tensors that it reads are returned, and its results become inputs."""
        function = call.function.removeprefix("torch.").replace("nn.functional.", "F.")
        self.program.missing[f"{function}: {why}".removesuffix(": ")] += 1
        read = [number for number in _list_numbers(call.args) if number in self.program.names]
        self.ends += [number for number in read if number not in self.unwritten]

    def _require_readable(self, call: RecordedCall, index: int) -> None:
        recorded = self.program.recorded
        if recorded.training and not call.with_gradients:
            read = [recorded.tensors[number] for number in _list_numbers(call.args)]
            if any(tensor.requires_grad for tensor in read):
                function = next((name for name in call.within if name.startswith("autograd.Function")), "")
                raise Untranslatable(f"within {function}" if function else "no_grad within training")
        if index in self.refused:
            raise Untranslatable(self.refused[index])

    def _read(self, record: RecordedCall, index: int) -> None:
        program, call = self.program, ImportedCall(self.program, record)
        kept, program.cast = len(program.ops), record.autocast
        made = READERS.get(call.function, ImportedCall.read)(call)
        call.require_read()
        self.unwritten.update(record.results if "empty" in call.function else ())
        self.calls |= {op.name: index for op in program.ops[kept:]}
        pairs = list(zip(record.results, made, strict=True))
        for number, name in pairs:
            self._require_type(name, program.recorded.tensors[number])
        program.names |= dict(pairs)

    def _require_type(self, name: str, tensor: RecordedTensor) -> None:
        inferred = self.program.types[name]
        sizes = inferred.sizes({})
        if (sizes, inferred.dtype) != (tensor.shape, tensor.dtype):
            given = f"{tensor.dtype} {list(tensor.shape)}"
            raise Untranslatable(f"gives {given}, read as {inferred.dtype} {list(sizes)}")


def translate(recorded: Recorded, refused: Mapping[int, str]) -> Translation:
    """The calls of a recorded run, translated; calls that no case can express are left out and counted.

    refused: why calls are left out that make no case with the others, by index
    """
    casts = Counter(call.autocast for call in recorded.calls)
    autocast = max(casts, key=lambda cast: casts[cast], default="")
    translation = Translation(ImportedProgram(recorded, autocast, autocast), refused)
    for index, call in enumerate(recorded.calls):
        translation.add(call, index)
    return translation


def _list_numbers(data: Any) -> list[int]:
    if isinstance(data, Mapping):
        number = data.get("tensor")  # a parameter may have this name too
        return [number] if isinstance(number, int) else [n for value in data.values() for n in _list_numbers(value)]
    return [n for item in data for n in _list_numbers(item)] if isinstance(data, (list, tuple)) else []
