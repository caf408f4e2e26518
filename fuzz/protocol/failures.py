"""What is wrong with what a subject gave: one typed failure out of a closed list, never a sentence.

Indices are those of an element, one number for each axis. Errors are absolute, against float64.
`fuzz/protocol/render.py` puts failures into words.
"""

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from generators.records import Tagged


class Word(str, Enum):
    """A word of a closed list, which is its text; `explanation`: one line for a person who meets it."""

    explanation: str

    def __new__(cls, value: str, explanation: str = "") -> "Word":  # noqa: PYI034 - workers run on 3.10
        """The word with its explanation."""
        word = str.__new__(cls, value)
        word._value_, word.explanation = value, explanation
        return word

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Value:
    """A tensor that is compared: of a run of the case, or (`kind` is `result`) of one call of an attention function."""

    kind: Literal["output", "input", "parameter", "buffer", "result"]
    name: int | str
    """The index of an output or input, the name of a parameter or buffer, a result's "out", "dq", "dk", "dv", "dbias"
    or "dsinks"."""
    is_gradient: bool = False
    is_written: bool = False
    """Its content after the call, which changed it in place."""
    call: int = 1
    """Counts the calls of the module."""

    @classmethod
    def of_result(cls, name: str) -> "Value":
        """The output or a gradient of one call of an attention function."""
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
    UNSUPPORTED = "unsupported"
    TEXT_FAILS = "text_fails", "the program around the call does not run"
    NO_MEMORY = "no_memory", "not enough memory left to judge it"
    NO_VERDICT = "no_verdict", "no verdict"


@dataclass(frozen=True)
class Write:
    """Memory that a function should not have written to. `buffer`: an argument's name, or what allocated it;
    `place`: `before`, `after`, `itself` or `between` its rows; `count`: elements written."""

    buffer: str
    place: str
    count: int


@dataclass(frozen=True)
class StateChange:
    """State of the whole process that a subject changed. `state`: what it is, as fuzz/check/process_state.py names it;
    `before` and `after`: its values, as text; `is_restored`: whether it could be put back."""

    state: str
    before: str
    after: str
    is_restored: bool = True


class FailureKey(NamedTuple):
    """What tells failures with one verdict apart, equal for the same failure of other cases."""

    text: str = ""
    """Torch's, normalized: an exception, a fault of CUDA, or the place where a process was lost."""
    names_argument: bool = False
    """The exception says which argument of an ATen operation is wrong."""
    operation: str = ""
    """Eager's wrong operation."""
    is_finite: bool = True
    """Whether that operation gives numbers."""
    states: tuple[str, ...] = ()
    """The states of the process that were changed, sorted."""
    lost: tuple[str, ...] = ()
    """How a process was lost, and by which signal."""


@dataclass(frozen=True)
class Failure(Tagged):
    """Base of all failures. `without_dropout`: of the case's call without dropout; `sequences`: how it was packed;
    `also`: other results of that call that are wrong; `unwritten`: it comes with the content of memory that nothing has
    written to."""

    without_dropout: bool = field(default=False, kw_only=True)
    also: tuple[Value, ...] = field(default=(), kw_only=True)
    sequences: str = field(default="", kw_only=True)
    unwritten: bool = field(default=False, kw_only=True)

    def key(self) -> FailureKey | None:
        """None where the verdict and the applied rewrites say all that is known."""
        return None


@dataclass(frozen=True)
class WrongValue(Failure):
    """An element is off from float64, further than rounding explains where the verdict is a finding. `ratio`: the worst
    row's error over what rounding explains; `limit`: the ratio that counts as wrong; `eager_error`: None where eager is
    not compared; `gradient_missing`: no gradient came, and 0 stands in its place; `undeclared`: what an attention
    function would have to round besides for this to be right, as its capabilities name it."""

    value: Value
    index: tuple[int, ...]
    error: float
    ratio: float
    limit: float
    eager_error: float | None = None
    gradient_missing: bool = False
    undeclared: tuple[str, ...] = ()


@dataclass(frozen=True)
class DifferentElements(Failure):
    """Elements that can't round (integers, booleans) differ from eager's."""

    value: Value
    count: int
    total: int
    dtype: str = ""


@dataclass(frozen=True)
class NotFinite(Failure):
    """Elements are NaN or infinite. `first`: the index of the first one."""

    value: Value
    count: int
    first: tuple[int, ...]


@dataclass(frozen=True)
class NonfiniteByConvention(Failure):
    """Elements are not finite in one of eager and compiled, where no answer is right. Accuses nobody."""

    value: Value
    count: int


@dataclass(frozen=True)
class IllConditioned(Failure):
    """Rounding alone changes every weight, so that nothing can be said of the value. Accuses nobody."""

    value: Value


@dataclass(frozen=True)
class EmptyRowsNotZero(Failure):
    """Rows of queries that keep no key are neither 0 nor NaN."""

    value: Value
    count: int
    first: tuple[int, ...]


@dataclass(frozen=True)
class BiasedErrors(Failure):
    """Errors differ on the whole from those of right kernels on the same inputs. `statistic`: `scale` or `bias`, with
    `amount` the factor; `rms` or `row`, with `amount` the multiple of what right kernels have. `deviations`: standard
    deviations away from `kernels` simulated ones. `undeclared`: as in `WrongValue`."""

    value: Value
    statistic: str
    amount: float
    deviations: float
    kernels: int
    undeclared: tuple[str, ...] = ()


@dataclass(frozen=True)
class MissingGradient(Failure):
    """The output has no gradient though an argument requires one."""

    value: Value


@dataclass(frozen=True)
class DropoutStatistic(Failure):
    """A statistic over many dropout seeds is not eager's. `statistic`: `mean`, `variance`, `slope` or `nonfinite`;
    `part`: the slice as an index, "" for all; `effect`: compiled over eager's, or the share of seeds."""

    value: Value | None
    statistic: str
    part: str
    effect: float
    seeds: int
    standard_errors: float


@dataclass(frozen=True)
class DropoutMask(Failure):
    """The dropout mask of an attention function is wrong. `problem`: `extreme_rate`, `keep_rate`, `repeated`,
    `same_for_seeds` or `not_repeatable`; `count` of `total` weights show it; `seen` and `expected`: the share; `axis`
    and `index` or `lag`: where; `seeds`: of the masks compared."""

    problem: str
    p: float
    count: int = 0
    total: int = 0
    seen: float = 0.0
    expected: float = 0.0
    worst: float = 0.0
    axis: str = ""
    index: int | None = None
    lag: int | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class FaultyOperation(Failure):
    """Eager is wrong: `operation` gives `given` where float64 gives `exact`. `value` is off by `error` (inf: not
    finite) because of it."""

    operation: str
    given: float
    exact: float
    value: Value | None = None
    error: float = 0.0

    @property
    def is_not_finite(self) -> bool:
        """Whether the operation gives NaN or infinity."""
        return not math.isfinite(self.given)

    def key(self) -> FailureKey:
        """The operation, and whether it gives numbers."""
        return FailureKey(operation=self.operation, is_finite=not self.is_not_finite)


@dataclass(frozen=True)
class OutOfBounds(Failure):
    """Memory was written that is not the subject's to write."""

    writes: tuple[Write, ...]


@dataclass(frozen=True)
class FormDiffers(Failure):
    """Not the numbers but the form differs from eager's."""

    aspect: str
    """`structure`, `memory`, `mutation`, `dtype`, `shape`, `device` or `strides`."""
    actual: str = ""
    expected: str = ""
    """Eager's. Both are "" for memory."""
    value: Value | None = None
    """None for the structure."""
    actual_owner: Value | None = None
    expected_owner: Value | None = None
    """The values that `value` shares its memory with, where `aspect` is `memory`."""

    @property
    def owner(self) -> Value | None:
        """The value whose memory only one of both shares."""
        return self.actual_owner or self.expected_owner


@dataclass(frozen=True)
class Nondeterministic(Failure):
    """Two runs on equal inputs differ in a value."""

    value: Value


@dataclass(frozen=True)
class StateChanged(Failure):
    """State of the whole process is another one after the call."""

    changes: tuple[StateChange, ...]

    def key(self) -> FailureKey:
        """The states, whatever their values."""
        return FailureKey(states=tuple(sorted(change.state for change in self.changes)))


@dataclass(frozen=True)
class Raised(Failure):
    """An exception: its type's name and the first line of its text that says something. `place`: `FILE:LINE: SOURCE`
    of the line of an attention function that raised it."""

    error: str
    text: str = ""
    place: str = ""

    def key(self) -> FailureKey:
        """By its place where the exception says nothing."""
        text = normalize(": ".join(filter(None, [self.error, self.text or self.place])))
        return FailureKey(text, names_argument="aten::" in text and "argument" in text)


@dataclass(frozen=True)
class DeviceError(Failure):
    """CUDA refuses all further work. `fault`: why, as cudaGetErrorString says it; `kernel`: the Triton kernel or the
    operator, and `place`: the line of the function, as in `Raised`; both are known where launches are synchronous."""

    fault: str
    kernel: str = ""
    place: str = ""

    def key(self) -> FailureKey:
        """The fault and the kernel, or the line that launched it."""
        return FailureKey(normalize(" in ".join(filter(None, [self.fault, self.kernel or self.place]))))


@dataclass(frozen=True)
class ProcessLost(Failure):
    """The process ended, or had to be ended. `detail`: the signal's name, the exit code, the seconds or MiB allowed;
    `place`: `FUNCTION (FILE)` of the innermost frame; `last_words`: what it wrote last where no frame is known."""

    how: Process
    detail: str
    place: str = ""
    last_words: str = ""

    def key(self) -> FailureKey | None:
        """None out of memory: which allocation is the one too many is chance."""
        if self.how is Process.OUT_OF_MEMORY:
            return None
        lost = (self.how.value, self.detail) if self.how is Process.SIGNAL else (self.how.value,)
        return FailureKey(normalize(self.place or self.last_words), lost=lost)


@dataclass(frozen=True)
class NotTaken(Failure):
    """The subject does not take the case. Accuses nobody. `detail`: what it says, in one line."""

    why: Refusal
    detail: str = ""


def normalize(text: str) -> str:
    """A text without what varies between cases: numbers, addresses, paths, generated names, the stage of compiling."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x", text)
    text = re.sub(r"(/[\w.+-]+){2,}", "PATH", text)
    text = re.sub(r"\b(Fake|Functional|Proxy)Tensor\b", "Tensor", text)
    text = re.sub(r"\b[su]\d+(\*[su]\d+)*\b", "N", text)  # symbolic sizes
    text = re.sub(r"\b([A-Za-z_]+?)_?\d+(_\d+)*\b", r"\1N", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return re.sub(r"\s*N(\s*,\s*N)+", " N", text)[:200]
