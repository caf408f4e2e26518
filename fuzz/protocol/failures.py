"""Failures of subjects: a closed list of types.

An index of an element has a number for each axis. Errors are absolute, against float64.
`fuzz/protocol/render.py` puts failures into words.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from generators.records import Rule, Tagged, Word

_INDEX_OR_NAME = Rule(lambda name: isinstance(name, str) or name >= 0, "is not an index")


@dataclass(frozen=True)
class Value:
    """A tensor that is compared. A `result` is of a call of an attention function, other kinds are of the module."""

    kind: Literal["output", "input", "parameter", "buffer", "result"]
    # the index of an output or input; a name; "out", "dq", "dk", "dv", "dbias" or "dsinks" of a result, or the name of
    # an argument that "out" shares memory with
    name: Annotated[int | str, _INDEX_OR_NAME]
    is_gradient: bool = False
    is_written: bool = False  # the content after the call, which wrote it in place
    call: int = 1  # of the module

    @classmethod
    def of_result(cls, name: str) -> "Value":
        """The output or a gradient of a call of an attention function."""
        return cls("result", name, is_gradient=name != "out")


class Process(Word):
    """How a process was lost. {} is the detail."""

    TIMEOUT = "timeout", "timed out after {} s"
    OUT_OF_MEMORY = "out_of_memory", "used more than {} MiB"
    SIGNAL = "signal", "died by {}"
    EXIT = "exit", "ended with exit code {}"
    PROTOCOL = "protocol", "broke the protocol: {}"


class Refusal(Word):
    """Why a subject does not take a case."""

    UNKNOWN_SUBJECT = "unknown_subject", "this worker has no such subject, or no C++ compiler for it"
    NO_CONTRACT = "no_contract", "the case has no contract that says what its attention computes"
    NOT_RANDOM = "not_random", "the case draws no random numbers"
    NOT_TRAINING = "not_training", "the case has no backward pass"
    NOT_INFERENCE = "not_inference", "the case is in training, which it does not promise"
    UNSUPPORTED = "unsupported", ""
    NOT_COMPILED = "not_compiled", "no compiled code ran"
    TEXT_FAILS = "text_fails", "the program around the call does not run"
    NO_MEMORY = "no_memory", "not enough memory left to judge it"
    NO_VERDICT = "no_verdict", "no verdict"


@dataclass(frozen=True)
class Write:
    """A forbidden write to memory."""

    buffer: str  # the name of an argument, or the line that allocates
    place: str  # `before`, `after`, `itself`, or `between` its rows
    count: int  # elements


@dataclass(frozen=True)
class StateChange:
    """A change of state of the whole process."""

    state: str  # as fuzz/check/torch_api/process_state.py names it
    before: str
    after: str
    is_restored: bool = True


class FailureKey(NamedTuple):
    """Equal for the same failure of two cases, and different for different failures with the same verdict."""

    text: str = ""  # normalized: an exception, a fault of CUDA, or the place where a process was lost
    names_argument: bool = False  # the exception says which argument of an ATen operation is wrong
    operation: str = ""  # eager's wrong operation
    is_finite: bool = True  # whether that operation gives numbers
    states: tuple[str, ...] = ()  # the states of the process that were changed, sorted
    lost: tuple[str, ...] = ()  # how a process was lost, and by which signal


@dataclass(frozen=True)
class Sequences:
    """The sequences of a packed or paged call of an attention function."""

    layout: str  # `packed` or `paged`
    queries: tuple[int, ...]  # lengths
    keys: tuple[int, ...]
    block_size: int = 0  # of a paged call
    number: int | None = None  # the sequence that fails


@dataclass(frozen=True)
class Failure(Tagged):
    """Base of all failures."""

    without_dropout: bool = field(default=False, kw_only=True)  # the case's call fails without dropout
    also: tuple[Value, ...] = field(default=(), kw_only=True)  # other wrong results of the call
    sequences: Sequences | None = field(default=None, kw_only=True)  # of a packed or paged call
    unwritten: bool = field(default=False, kw_only=True)  # it depends on the content of unwritten memory

    def key(self) -> FailureKey | None:
        """None if verdict and applied rewrites say all that is known."""
        return None


@dataclass(frozen=True)
class WrongValue(Failure):
    """An element differs from float64; if the verdict is a finding, by more than rounding explains."""

    value: Value
    index: tuple[int, ...]
    error: float
    ratio: float  # the worst row's error over the error that rounding explains
    limit: float  # the ratio that counts as wrong
    eager_error: float | None = None
    gradient_missing: bool = False  # 0 stands in its place
    undeclared: tuple[str, ...] = ()  # values that the function would have to round to be right, as in `Capabilities`


@dataclass(frozen=True)
class RightAt(Failure):
    """The values are right at other precisions, which the compiler declares. Accuses nobody."""

    precisions: tuple[str, ...]  # dtypes


@dataclass(frozen=True)
class DifferentElements(Failure):
    """Elements that can't round (integers, booleans) differ from eager's."""

    value: Value
    count: int
    total: int
    dtype: str = ""


@dataclass(frozen=True)
class NotFinite(Failure):
    """Elements are NaN or infinite. `first`: the index of the first."""

    value: Value
    count: int
    first: tuple[int, ...]


@dataclass(frozen=True)
class EmptyRowsNotZero(Failure):
    """Rows of queries that keep no key are neither 0 nor NaN."""

    value: Value
    count: int
    first: tuple[int, ...]


@dataclass(frozen=True)
class BiasedErrors(Failure):
    """The distribution of errors differs from that of right kernels on the same inputs."""

    value: Value
    statistic: str  # `scale`, `bias`, `rms` or `row`
    amount: float  # the factor of scale or bias; the multiple of the error of right kernels
    deviations: float  # standard deviations from the simulated kernels
    kernels: int  # their number
    undeclared: tuple[str, ...] = ()  # as in `WrongValue`


@dataclass(frozen=True)
class MissingGradient(Failure):
    """The output has no gradient though an argument requires one."""

    value: Value


@dataclass(frozen=True)
class DropoutStatistic(Failure):
    """A statistic over many dropout seeds is not eager's."""

    value: Value | None
    statistic: str  # `mean`, `variance`, `slope` or `nonfinite`
    part: str  # the slice as an index; "" for all
    effect: float  # compiled over eager's, or the share of seeds
    seeds: int
    standard_errors: float


@dataclass(frozen=True)
class DropoutMask(Failure):
    """The dropout mask of an attention function is wrong."""

    problem: str  # `extreme_rate`, `keep_rate`, `repeated`, `same_for_seeds` or `not_repeatable`
    p: float
    count: int = 0  # weights that show it, of `total`
    total: int = 0
    seen: float = 0.0  # a share of weights
    expected: float = 0.0
    worst: float = 0.0  # standard errors
    axis: str = ""
    index: int | None = None  # along the axis
    lag: int | None = None  # the distance of masks along the axis
    seeds: tuple[int, ...] = ()  # of the masks that are compared


@dataclass(frozen=True)
class RepeatedMask(Failure):
    """Dropout masks that a program returns agree more often, or less often, than independent masks."""

    value: Value  # the result of a dropout
    other: Value | None = None  # the result that has the other mask; None: both are blocks of one mask,
    axis: int | None = None  # along this axis; None: of all elements in their order
    lag: int = 0  # the indices of a block, and the distance of the blocks
    agree: int = 0  # elements, of `total` in all calls
    total: int = 0
    expected: float = 0.0  # the share that agrees in independent masks
    doubt: float = 0.0  # -log of a bound on the probability of such masks


@dataclass(frozen=True)
class FaultyOperation(Failure):
    """An operation of eager is wrong."""

    operation: str
    given: float
    exact: float  # in float64
    value: Value | None = None  # is wrong because of it
    error: float = 0.0  # of the value; inf if it is not finite

    @property
    def is_not_finite(self) -> bool:
        return not math.isfinite(self.given)

    def key(self) -> FailureKey:
        return FailureKey(operation=self.operation, is_finite=not self.is_not_finite)


@dataclass(frozen=True)
class OutOfBounds(Failure):
    """Memory outside of the subject's buffers, or of its inputs, was written."""

    writes: tuple[Write, ...]


@dataclass(frozen=True)
class FormDiffers(Failure):
    """The form, and not the numbers, differs from eager's."""

    aspect: str  # `structure`, `memory`, `mutation`, `dtype`, `shape`, `device` or `strides`
    actual: str = ""  # "" for memory
    expected: str = ""  # eager's
    value: Value | None = None  # None for the structure
    actual_owner: Value | None = None  # for memory: the value that `value` shares its memory with
    expected_owner: Value | None = None

    @property
    def owner(self) -> Value | None:
        """The value whose memory either eager or compiled shares."""
        return self.actual_owner or self.expected_owner


@dataclass(frozen=True)
class Nondeterministic(Failure):
    """Two runs on equal inputs differ in a value."""

    value: Value


@dataclass(frozen=True)
class StateChanged(Failure):
    """The call changed state of the whole process."""

    changes: tuple[StateChange, ...]

    def key(self) -> FailureKey:
        return FailureKey(states=tuple(sorted(change.state for change in self.changes)))


@dataclass(frozen=True)
class Raised(Failure):
    """An exception."""

    error: str  # the name of its type
    text: str = ""  # the first informative line
    place: str = ""  # `FILE:LINE: SOURCE` of the attention function that raised it; `FUNCTION (FILE)` of a rank

    def key(self) -> FailureKey:
        """The exception, or its place if the exception has no text."""
        text = normalize(": ".join(filter(None, [self.error, self.text or self.place])))
        return FailureKey(text, names_argument="aten::" in text and "argument" in text)


@dataclass(frozen=True)
class DeviceError(Failure):
    """CUDA refuses all further work. `kernel` and `place` are known if launches are synchronous."""

    fault: str  # the text of cudaGetErrorString
    kernel: str = ""  # the Triton kernel or the operator
    place: str = ""  # as in `Raised`

    def key(self) -> FailureKey:
        return FailureKey(normalize(" in ".join(filter(None, [self.fault, self.kernel or self.place]))))


@dataclass(frozen=True)
class ProcessLost(Failure):
    """The process ended, or had to be ended."""

    how: Process
    detail: str  # the signal's name, the exit code, the seconds or MiB allowed
    place: str = ""  # `FUNCTION (FILE)` of the innermost frame
    last_words: str = ""  # its last output, if no frame is known

    def key(self) -> FailureKey | None:
        """None out of memory, since the allocation that fails first is random."""
        if self.how is Process.OUT_OF_MEMORY:
            return None
        lost = (self.how.value, self.detail) if self.how is Process.SIGNAL else (self.how.value,)
        return FailureKey(normalize(self.place or self.last_words), lost=lost)


@dataclass(frozen=True)
class NotTaken(Failure):
    """The subject does not take the case. Accuses nobody."""

    why: Refusal
    detail: str = ""  # its own words, in one line
    operator: str = ""  # that a compiler does not take, such as aten.index_copy_


_VARYING = (
    (r"0x[0-9a-fA-F]+", "0x"),  # addresses
    (r"(/[\w.+-]+){2,}", "PATH"),
    (r"\b(Fake|Functional|Proxy)Tensor\b", "Tensor"),
    (r"\b(query|key|value) is\b", "OPERAND is"),  # which is at fault
    (r"\bNode \w+\b", "Node N"),  # nodes of graphs, named after their operations
    (r"\bl__self___\w+", "l__self__"),  # Dynamo's names of parameters
    (r"\b[su]\d+(\*[su]\d+)*\b", "N"),  # symbolic sizes
    (r"\b([A-Za-z_]+?)_?\d+(_\d+)*\b", r"\1N"),  # generated names
    (r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N"),
    (r"\s*N(\s*,\s*N)+", " N"),
)
"""Parts of messages that vary for one bug, in the order in which they are replaced."""


def normalize(text: str) -> str:
    """A text without what varies."""
    for varying, word in _VARYING:
        text = re.sub(varying, word, text)
    return text[:200]
