"""What a campaign and its workers say to each other: one JSON object a line, over the worker's stdin and stdout.

worker to parent: a `Stage` before each step of its start; one `Hello` or `Unusable`; then, for every `Check`, a `Stage`
before each stage and one `Result`; a `Fault` in place of any of these.
parent to worker: `Check` and `Exit`; the end of the stream means the same as `Exit`.
A libFuzzer process is a worker that says `Drawn` first, and waits for the `Check` of that case.

Both sides import this module, and the worker's interpreter has nothing but the standard library and torch.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from fuzz.experiments import Trial
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Failure, Value, Word, Write
from fuzz.protocol.rewrites import WrongRewrite
from generators.records import Tagged, decode, encode

#: Stages of a check that come before the subjects, in this order.
EAGER, REFERENCE, NOISE = "eager", "reference", "noise"


class CoverageKind(Word):
    """Kinds of coverage."""

    REWRITE = "rewrite", "a graph rewrite was applied"
    OP = "op", "an operation is in a graph after all passes"
    LOWERING = "lowering", "Inductor lowered an operation"
    FALLBACK = "fallback", "Inductor calls an operation as it is"
    SETTING = "setting", "a subject ran under a setting"
    UNGUARDED = "unguarded", "a function does not run with this in guarded memory"


@dataclass(frozen=True, order=True)
class CoverageItem:
    """Something that a case reached, such as the lowering aten.addmm."""

    kind: CoverageKind
    name: str


@dataclass(frozen=True)
class StepsTaken:
    """How many steps of compiling an experiment allowed that there were, and the name of the last of them."""

    count: int
    last: str


class Verdict(Word):
    """What one subject made of one case. `is_finding` tells the ones that accuse the subject, or eager."""

    OK = "ok", "equal to eager, or as close to the exact result as eager is"
    ROUNDING = "rounding", "differs from eager by no more than rounding explains"
    ILL_CONDITIONED = "ill_conditioned", "differs, but a one-ulp change moves eager just as far"
    CONVENTION = "convention", "differs only where eager or the exact result is not finite"
    RANDOM_STREAM = "random_stream", "active dropout drew other random numbers; values are not comparable"
    PRECISION_POLICY = "precision_policy", "off by rounding that is by design: casts that Inductor drops"
    WRONG_RESULT = "wrong_result", "an output is further from the exact result than rounding explains"
    WRONG_GRADIENT = "wrong_gradient", "a gradient is further from the exact one than rounding explains"
    NONFINITE = "nonfinite", "NaN or infinity where eager and the exact result are finite"
    METADATA = "metadata", "another dtype, shape, order of strides, device or structure than eager's"
    NONDETERMINISTIC = "nondeterministic", "two runs on equal inputs differ"
    OUT_OF_BOUNDS = "out_of_bounds", "wrote to memory that is not its own: beyond its buffers, or into its inputs"
    EAGER_SUSPECT = "eager_suspect", "eager is wrong: one of its operations, by itself, is far from the same in float64"
    STATE_CHANGED = "state_changed", "changed what the whole process shares, such as torch's default dtype"
    COMPILE_ERROR = "compile_error", "compiling raised; eager runs"
    RUNTIME_ERROR = "runtime_error", "running raised; eager runs"
    DEVICE_ERROR = "device_error", "a kernel broke the GPU: an access outside of memory, an assertion, a failed launch"
    TIMEOUT = "timeout", "did not finish within the time limit"
    WORKER_DIED = "worker_died", "the process died"
    OUT_OF_MEMORY = "out_of_memory", "asked for more memory than the limit; eager does not"
    REJECTED = "rejected", "eager refuses the case"
    SKIPPED = "skipped", "the subject does not take this case"

    @property
    def is_finding(self) -> bool:
        """Whether this verdict accuses somebody of a bug: the subject, or eager."""
        return self in FINDINGS


_HARMLESS = "ok rounding ill_conditioned convention random_stream precision_policy rejected skipped"
FINDINGS = frozenset(Verdict) - set(map(Verdict, _HARMLESS.split()))


class ProtocolError(Exception):
    """A line that is not a message of this protocol; the text is one line and says what is wrong with it."""


@dataclass(frozen=True)
class Message(Tagged):
    """Base of all messages: one JSON object with a `kind`."""

    def to_json(self) -> str:
        """This message as one line, without the newline. Floats that JSON lacks (inf, nan) become strings."""
        return json.dumps(encode(self), separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Hello(Message):
    """The worker is ready. `cxx`: the C++ compiler Inductor would use, None without one;
    `attention`: those of its subjects that compute a case's attention and need an `attention_stub`, with what they take
    if it was told to load them; `missing_hooks`: by kind of coverage, the names of torch that it needs and this torch
    lacks."""

    torch: str
    python: str
    device: str
    cxx: str | None
    pid: int
    device_name: str = ""
    subjects: tuple[str, ...] = ()
    attention: dict[str, Capabilities] = field(default_factory=dict)
    missing_hooks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unusable(Message):
    """The worker can't work here, ever; it exits with code 2 after saying so. `reason` is one line."""

    reason: str


@dataclass(frozen=True)
class Fault(Message):
    """The worker ends because of a fault of attnfuzz; `text`: the traceback."""

    text: str


@dataclass(frozen=True)
class Check(Message):
    """Run one case. `source`: the emitted Python text; `random`: it has active dropout; `repeat`: compiled runs
    compared bit by bit (1: no determinism check); `attention_stub`: the source with its attention replaced by calls of
    a global `attend`, None for a case without a contract; `experiments`:
    those to run the subjects under; `settings`: those that subjects with options are compiled and run under."""

    id: int
    source: str
    subjects: tuple[str, ...]
    training: bool = False
    dynamic: bool = False
    random: bool = False
    repeat: int = 2
    attention_stub: str | None = None
    experiments: tuple[Trial, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit(Message):
    """Finish: the worker exits with code 0."""


@dataclass(frozen=True)
class Drawn(Message):
    """The case libFuzzer wants run next, as a case file's text."""

    case: str


@dataclass(frozen=True)
class Stage(Message):
    """What the worker starts now: "eager", "reference", "noise" or a subject's name; a step of its start (`id` 0)."""

    id: int
    stage: str


@dataclass(frozen=True)
class WrongElements:
    """Which elements of a tensor are wrong, axis by axis.

    `wrong`: their number; `ranges`: by axis the indices that have a wrong element, as (first, last).
    """

    value: Value
    shape: tuple[int, ...]
    wrong: int
    ranges: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        """Raises `ValueError` where ranges are not within the shape."""
        for size, ranges in zip(self.shape, self.ranges, strict=True):
            ends = [end for first, last in ranges for end in (first, last)]
            inside = [0, *ends, size - 1]
            if (ends and inside != sorted(inside)) or (self.wrong and not ends):
                raise ValueError("ranges that are not within the shape")


@dataclass(frozen=True)
class SubjectResult:
    """One subject's verdict."""

    subject: str
    verdict: Verdict
    numbers: dict[str, float] = field(default_factory=dict)
    """Behind the verdict: see fuzz/check/oracle/verdict.py."""
    applied_rewrites: tuple[str, ...] = ()
    """The names of the graph rewrites that were applied, sorted."""
    dynamo_same: bool | None = None
    """What torch._dynamo.utils.same says with its defaults; None where it was not asked."""
    seconds: float = 0.0
    where: WrongElements | None = None
    coverage: tuple[CoverageItem, ...] = ()
    """What the case reached besides rewrites, sorted."""
    failure: Failure | None = None
    """What is wrong, or why the subject does not take the case."""
    wrong_rewrites: tuple[WrongRewrite, ...] = ()
    """Those proven wrong on the operands of the case."""
    right_rewrites: tuple[str, ...] = ()
    """The patterns of rewrites that are proven right there."""
    writes: tuple[Write, ...] = ()
    """Memory written out of bounds, where the failure is another."""
    observations: tuple[StepsTaken, ...] = ()
    """What the controls of the request saw."""

    @property
    def whole_coverage(self) -> tuple[CoverageItem, ...]:
        """What the case reached, rewrites included."""
        return (*(CoverageItem(CoverageKind.REWRITE, name) for name in self.applied_rewrites), *self.coverage)

    @property
    def value(self) -> Value | None:
        """The value that is wrong, if any."""
        return self.where.value if self.where is not None else getattr(self.failure, "value", None)


@dataclass(frozen=True)
class Result(Message):
    """The answer to a `Check`. `rejected`: why eager refuses the case (then no results), else None;
    `torch_seconds`: the part of `seconds` inside torch; `rss_mib`: resident memory of the worker now; `unfit`: why
    the process can check nothing more, or ""; subjects after the one that brought that about have no result."""

    id: int
    rejected: str | None
    results: tuple[SubjectResult, ...]
    seconds: float = 0.0
    torch_seconds: float = 0.0
    rss_mib: float = 0.0
    unfit: str = ""


def from_json(line: str | bytes) -> Message:
    """The message a line holds. Raises `ProtocolError` for anything else. Unknown keys are ignored."""
    try:
        return decode(Message, json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message ({_shorten(str(error))}): {_shorten(line)}") from error


def _shorten(line: str | bytes) -> str:
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return " ".join(text.split())[:120]
