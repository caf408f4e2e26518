"""Messages about a user's module: the calls that it makes, and whether a case repeats them.

A worker answers each of these, or `NotRecorded`: `LoadModule` with `Loaded`, `RecordSubmodule` with `Recorded`,
`KeepValues` with `KeptValues`, and `Repeat` with `Repeated`.
"""

from dataclasses import dataclass, field
from typing import Any

from fuzz.protocol import Message


@dataclass(frozen=True)
class LoadModule(Message):
    """Call a factory, and run its module once."""

    factory: str  # package.module:function, or package/architecture of a released model
    run: str = ""  # of a released model: a name of `Loaded.runs`
    lists_runs: bool = False  # give `Loaded.runs`, which takes time


@dataclass(frozen=True)
class Submodule:
    """A submodule that the run called."""

    path: str  # "" for the whole module
    type: str  # the name of its class
    attends: bool  # whether it computes attention: a softmax, or a fused call
    calls: int  # torch-level calls in all its calls of one run, submodules included


@dataclass(frozen=True)
class Loaded(Message):
    """The factory's module, by its submodules, outermost first."""

    submodules: tuple[Submodule, ...]
    training: bool = False
    drops: bool = False  # in training, with a rate of dropout above 0
    values: str = ""  # hash of its parameters, buffers and arguments
    runs: tuple[str, ...] = ()  # the ways people run a released model, the most telling first


@dataclass(frozen=True)
class RecordSubmodule(Message):
    """Run a submodule again with the arguments of its first call, and record its torch-level calls."""

    path: str
    known: tuple[str, ...]  # names of functions; the calls inside of other Python functions are recorded instead


@dataclass(frozen=True)
class SharedMemory:
    """The place of an argument in the memory of another tensor from outside, into which the run writes.

    It is a slice along an axis, or with `dim` None another part of the memory, which no case can express.
    """

    of: int  # the number of the other tensor
    dim: int | None = None
    start: int = 0


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor that a call reads or makes. `kind` and `scale` name its distribution (generators.program.values)."""

    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    kind: str = ""
    scale: float = 1.0
    name: str = ""  # of an argument or a parameter; "" for a tensor from elsewhere
    origin: str = "made"  # "argument", "parameter", "buffer", "captured", "made" by a call, "unseen"
    requires_grad: bool = False
    param: float = 0.0  # of the distribution
    shared: SharedMemory | None = None


@dataclass(frozen=True)
class RecordedCall:
    """A call of a torch function.

    `args` are the given arguments by the names of torch's schemas, in their order, where `self` is `input`; `defaults`
    are torch's. In both a tensor is {"tensor": number}, a dtype {"dtype": name}, a slice {"slice": [start, stop,
    step]}, an ellipsis {"ellipsis": true}, and a list of numbers as index {"list": numbers}. Anything else that is no
    plain data is {"other": type}.
    """

    function: str  # "torch.nn.functional.linear", "torch.Tensor.view"
    args: dict[str, Any]
    defaults: dict[str, Any]
    results: tuple[int, ...]  # tensors
    module: str  # the path of the submodule that makes it
    autocast: str = ""  # the dtype of the autocast around it
    with_gradients: bool = True
    within: tuple[str, ...] = ()  # functions around it that torch traces or calls specially, such as checkpoint


@dataclass(frozen=True)
class VariedRun:
    """The same run with another value of a number that forward takes."""

    name: str
    value: bool | int | float  # in the recorded run
    other: bool | int | float
    calls: tuple[RecordedCall, ...]  # with the tensors of the recorded run, by number


@dataclass(frozen=True)
class Recorded(Message):
    """The run of a submodule."""

    calls: tuple[RecordedCall, ...]
    tensors: tuple[RecordedTensor, ...]  # by number
    returns: tuple[int, ...]
    training: bool
    reads: tuple[str, ...] = ()  # calls that give Python numbers from the content of tensors, with their modules
    autocast: str = ""  # around the whole
    varied: tuple[VariedRun, ...] = ()  # of each number among the arguments with which it makes the same calls


@dataclass(frozen=True)
class KeepValues(Message):
    """Keep the values of recorded tensors, as they were before the run: few integers in the answer, others in files."""

    tensors: tuple[int, ...]  # numbers
    directory: str  # for the files
    most_numbers: int  # integers in the answer, of a tensor
    most_bytes: int  # of all files


@dataclass(frozen=True)
class KeptTensor:
    """The values of a tensor, as in `generators.program.given.Given`; complex numbers in their real form."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    numbers: tuple[int, ...] = ()
    sha256: str = ""


@dataclass(frozen=True)
class KeptValues(Message):
    """The kept values, without tensors that have no elements."""

    tensors: tuple[KeptTensor, ...]


@dataclass(frozen=True)
class Repeat(Message):
    """Run the source of a case on the recorded tensors, and compare all bits with the recorded run.

    `inputs` and `parameters`: numbers of tensors by the name in the case, in the order of `forward`; `values`: numbers
    by the index of the output. With `own_values` it runs on the values of its text, which may read `files`: paths by
    SHA-256.
    """

    source: str
    inputs: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, int], ...]
    values: tuple[int, ...]
    compares_gradients: bool
    own_values: bool = False
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repeated(Message):
    """Whether the case repeats the run. `different`: the first output that differs, or the name of the gradient."""

    different: str = ""


@dataclass(frozen=True)
class NotRecorded(Message):
    """The module can't be run or recorded; the reason is one line."""

    reason: str
    is_missing: bool = False  # the factory can't be imported
