"""What torch promises bit for bit under a setting of a case, in torch's words.

`numerics="strict"` of torch 2.15 is not among them: its comment in config.py requests eager's order of operations and
has it as a TODO to route operations through it. torch promises nothing of results under other numbers of threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuzz.check.oracle.verdict import Judgement
from fuzz.protocol import Verdict
from fuzz.protocol.failures import BrokenPromise

RUNS, BATCH = "runs", "batch"
"""A value is promised to equal that of another run; a batch row within the batch that of the row alone."""
DETERMINISTIC = "use_deterministic_algorithms"
_CONFIG = "torch/_inductor/config.py"


@dataclass(frozen=True)
class Promise:
    """What is equal (`aspect`) where `setting` is on, on devices for which torch has code that keeps it."""

    setting: str
    aspect: str
    sentence: str
    source: str
    devices: tuple[str, ...] = ("cpu", "cuda")


PROMISES = (
    Promise(
        DETERMINISTIC,
        RUNS,
        "algorithms which, given the same input, and when run on the same software and hardware, always produce the "
        "same output",
        f"torch.{DETERMINISTIC}",
    ),
    Promise(
        "deterministic",
        RUNS,
        "A deterministic mode that skips any on device benchmarking in Inductor if we know they affect numerics",
        _CONFIG,
    ),
    Promise(
        "batch_invariant",
        BATCH,
        "Batch-invariant mode: stable per-sample compiled kernel across batch sizes",
        _CONFIG,
        ("cuda",),
    ),
    Promise("batch_invariant", RUNS, "Implies deterministic", _CONFIG, ("cuda",)),
)


def find_promise(aspect: str, settings: Mapping[str, Any], device: str) -> Promise | None:
    """The first promise of this kind that the settings of a case make torch give; None without one."""
    given = (one for one in PROMISES if one.aspect == aspect and settings.get(one.setting) and device in one.devices)
    return next(given, None)


def accuse(promise: Promise, value: str, judgement: Judgement) -> Judgement:
    """That `promise` is broken for a value; `judgement` is that on its numbers."""
    broken = BrokenPromise(value, promise.aspect, promise.setting, promise.sentence, promise.source)
    return Judgement(Verdict.BROKEN_PROMISE, broken, judgement.numbers)
