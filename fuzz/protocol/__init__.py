"""The protocol of a campaign and its workers: JSON objects, one a line, over the worker's stdin and stdout.

- The worker sends `StageStarted` before each step of its start, then one `Hello` or `Unusable`.
- For every `Check`, it sends `StageStarted` before each stage, and again with observations that would be lost with the
  process; then one `Result`. A `Fault` may replace any message.
- The parent sends `Check` and `Exit`. The end of the stream means `Exit`.
- A libFuzzer process is a worker that first sends `Drawn`, and waits for the `Check` of that case.

Both sides import this module. The worker has only the standard library and torch.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from fuzz.experiments import Trial
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Failure, NotTaken, Refusal, Value, Write
from fuzz.protocol.places import Place
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.protocol.verdicts import Verdict as Verdict
from generators.records import Tagged, Word, decode, encode

#: Stages of a check that come before the subjects, in this order.
EAGER, REFERENCE, NOISE = "eager", "reference", "noise"


class CoverageKind(Word):
    """Kinds of coverage."""

    REWRITE = "rewrite", "a graph rewrite was applied"
    OP = "op", "an operation is in a graph after all passes"
    LOWERING = "lowering", "Inductor lowered an operation"
    FALLBACK = "fallback", "Inductor calls an operation as it is"
    CACHE = "cache", "a cache of compiled programs had an answer, or none"
    SETTING = "setting", "a subject ran under a setting"
    UNGUARDED = "unguarded", "a function does not run with this in guarded memory"


@dataclass(frozen=True, order=True)
class CoverageItem:
    """Something that a case reached, such as the lowering aten.addmm."""

    kind: CoverageKind
    name: str


class Observation(Tagged):
    """Base of all that an experiment observes besides the verdict."""


@dataclass(frozen=True)
class StepsTaken(Observation):
    """The steps of compiling that an experiment allowed: their number, and the name of the last step."""

    count: int
    last: str
    left_out: tuple[Place, ...] = ()  # the places of the first step that it did not allow


@dataclass(frozen=True)
class Running(Observation):
    """The operation that runs, such as aten.bmm; "" between operations."""

    operation: str = ""


@dataclass(frozen=True)
class Parted(Observation):
    """The first of several watched values that is wrong: an output of a case, or the result of a submodule."""

    path: str = ""  # of the submodule; "" if all are right
    output: int | None = None  # its number; None for submodules, or if all are right


@dataclass(frozen=True)
class NodeParted(Observation):
    """The first node of another compiler's program whose value is wrong, as `WrongNode` of fuzz/compilers."""

    operators: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


class ProtocolError(Exception):
    """A line is no message of this protocol; the text is one line."""


@dataclass(frozen=True)
class Message(Tagged):
    """Base of all messages: a JSON object with a `kind`."""

    def to_json(self) -> str:
        """The message as a line without the newline. Infinity and NaN become strings."""
        return json.dumps(encode(self), separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Hello(Message):
    """The worker is ready."""

    torch: str
    python: str
    device: str
    cxx: str | None  # the C++ compiler of Inductor
    pid: int
    device_name: str = ""
    subjects: tuple[str, ...] = ()
    attention: dict[str, Capabilities] = field(default_factory=dict)  # by subject that computes just a case's attention
    missing_hooks: dict[str, str] = field(default_factory=dict)  # by kind of coverage, names that this torch lacks
    home: str = ""  # the directory of the torch package
    switch: str = ""  # what switches compilers off, in one line
    versions: dict[str, str] = field(default_factory=dict)  # of packages of compilers that are no part of torch
    abilities: dict[str, tuple[str, ...]] = field(default_factory=dict)  # as in portability.py, by the user's compiler

    @property
    def packages(self) -> dict[str, str]:
        """The versions of torch and of the packages of other compilers."""
        return {"torch": self.torch, **self.versions}


@dataclass(frozen=True)
class Unusable(Message):
    """The worker can't work here, or not for the subjects of a check; it exits with code 2."""

    reason: str  # one line


@dataclass(frozen=True)
class Fault(Message):
    """The worker ends because of a fault of attnfuzz."""

    text: str  # the traceback


@dataclass(frozen=True)
class Dropout:
    """An active dropout whose argument and result a case returns, by their numbers among its outputs."""

    argument: int
    result: int
    p: float


@dataclass(frozen=True)
class DirectCalls:
    """The text of a case with the operations of one kind of region called directly."""

    kinds: tuple[str, ...]  # this kind, and the transforms of the same operations
    text: str


@dataclass(frozen=True)
class Live:
    """A submodule of the user's module that the worker has loaded, with the arguments of its first call."""

    path: str  # "" for the whole module
    drops: bool = True  # rates of dropout stay as they are; else all are 0
    watched: tuple[str, ...] = ()  # paths of its submodules whose results are compared too, in this order
    inference: bool = False  # in inference; else in its own mode


@dataclass(frozen=True)
class Check(Message):
    """Run one case, or a part of a user's module as it is."""

    id: int
    source: str  # the emitted Python text; "" for a part of a module
    subjects: tuple[str, ...]
    plain: str = ""  # the text that the reference and noise run; "" for `source`
    regions: tuple[str, ...] = ()  # the kinds of regions and operations that `plain` spells in another way
    direct: tuple[DirectCalls, ...] = ()  # for each of `regions` that `plain` lacks, if there are two or more
    training: bool = False
    dynamic: bool = False
    random: bool = False  # it has active dropout
    derives: bool = False  # it computes derivatives in its forward pass
    dropouts: tuple[Dropout, ...] = ()  # that show their masks
    repeat: int = 2  # compiled runs that are compared bit by bit
    attention_stub: str | None = None  # calls a global `attend`; None for a case without a contract
    experiments: tuple[Trial, ...] = ()  # to run the subjects under
    settings: dict[str, Any] = field(default_factory=dict)  # of subjects with options
    hashes: bool = False  # whether results carry the hashes of their values
    live: Live | None = None  # in place of `source`; the worker finds `training` and `random` itself
    values: dict[str, str] = field(default_factory=dict)  # files that the text reads: paths by SHA-256
    joins_kernels: bool = False  # the C++ kernels of a graph are built together


@dataclass(frozen=True)
class Exit(Message):
    """The worker exits with code 0."""


@dataclass(frozen=True)
class Drawn(Message):
    """The next case of libFuzzer."""

    case: str  # the text of a case file


@dataclass(frozen=True)
class StageStarted(Message):
    """The worker starts a stage of a check, or a step of its own start."""

    id: int  # of the check, or 0
    stage: str  # "eager", "reference", "noise" or a subject's name; a step
    observed: tuple[Observation, ...] = ()  # so far, sent early in case the process dies


@dataclass(frozen=True)
class WrongElements:
    """The wrong elements of a tensor."""

    value: Value
    shape: tuple[int, ...]
    wrong: int  # their number
    ranges: tuple[tuple[tuple[int, ...], ...], ...]  # for each axis, indices with a wrong element, as (first, last)

    def __post_init__(self) -> None:
        """Raises `ValueError` for ranges outside of the shape."""
        for size, ranges in zip(self.shape, self.ranges, strict=True):
            ends = [end for first, last in ranges for end in (first, last)]
            inside = [0, *ends, size - 1]
            if (ends and inside != sorted(inside)) or (self.wrong and not ends):
                raise ValueError("ranges that are not within the shape")


@dataclass(frozen=True)
class SubjectResult:
    """The verdict on a subject."""

    subject: str
    verdict: Verdict
    numbers: dict[str, float] = field(default_factory=dict)
    """- ratio: the worst row's error over the error that rounding explains
    - limit: the ratio that counts as wrong
    - compiled_error, eager_error: the largest absolute errors of `judged` against float64
    - scale: the largest exact magnitude of `judged`
    - index: the flat index of the worst element of `judged`
    - rows_wrong, rows_total: over all values
    """
    applied_rewrites: tuple[str, ...] = ()  # names of graph rewrites, sorted
    dynamo_same: bool | None = None  # the answer of torch._dynamo.utils.same, if it was asked
    seconds: float = 0.0
    where: WrongElements | None = None
    coverage: tuple[CoverageItem, ...] = ()  # without rewrites, sorted
    failure: Failure | None = None  # the mistake, or the reason why the subject does not take the case
    wrong_rewrites: tuple[WrongRewrite, ...] = ()  # proven wrong on the operands of the case
    right_rewrites: tuple[str, ...] = ()  # the patterns of rewrites proven right on the operands
    writes: tuple[Write, ...] = ()  # memory written out of bounds, beside another failure
    observations: tuple[Observation, ...] = ()  # of the experiments of the request
    raised_at: Place | None = None  # the innermost line of the compiler, if the verdict is an exception
    hashes: tuple[str, ...] = ()  # of the values of its run, in their order: equal hashes are equal bits
    judged: Value | None = None  # the value that the verdict is about, right or wrong

    @property
    def whole_coverage(self) -> tuple[CoverageItem, ...]:
        return (*(CoverageItem(CoverageKind.REWRITE, name) for name in self.applied_rewrites), *self.coverage)

    @property
    def value(self) -> Value | None:
        """The value that is wrong, if any."""
        return self.where.value if self.where is not None else getattr(self.failure, "value", None)


@dataclass(frozen=True)
class Result(Message):
    """The answer to a `Check`."""

    id: int
    rejected: str | None  # why the case has no results: eager refuses it, or it can't be judged
    results: tuple[SubjectResult, ...]
    seconds: float = 0.0
    rss_mib: float = 0.0  # resident memory of the worker
    unfit: str = ""  # why the process can check nothing more; later subjects have no result
    hashes: tuple[str, ...] = ()  # of eager's values
    unjudged: tuple[Value, ...] = ()  # of a live module: eager's values with elements that are finite there alone
    stage: str = ""  # that rejects it: EAGER, or why it can't be judged: REFERENCE, or "start" for a module

    @property
    def only(self) -> SubjectResult:
        """The result of the only subject; `SKIPPED` without a name if the case is refused."""
        if self.results:
            return self.results[0]
        return SubjectResult("", Verdict.SKIPPED, failure=NotTaken(Refusal.NO_VERDICT, self.rejected or ""))


OUTPUT_CLOSED_CODE = 5
"""The exit code of a worker whose output a subject has closed."""


def from_json(line: str | bytes) -> Message:
    """The message of a line. Unknown keys are ignored. Raises `ProtocolError`."""
    try:
        return decode(Message, json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message ({_shorten(str(error))}): {_shorten(line)}") from error


def _shorten(line: str | bytes) -> str:
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return " ".join(text.split())[:120]
