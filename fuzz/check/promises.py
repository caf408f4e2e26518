"""What torch promises bit for bit under a setting of a case, in torch's words.

`numerics="strict"` of torch 2.15 is not among them: its comment in config.py requests eager's order of operations and
has it as a TODO to route operations through it. torch promises nothing of results under other numbers of threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzz.check.case_run import CaseRun
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import Program, execute, same_bits
from fuzz.check.subject_builder import Subject, find
from fuzz.protocol import EAGER, Verdict
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
        "given the same input, and when run on the same software and hardware, always produce the same output",
        f"torch.{DETERMINISTIC}",
    ),
    Promise(
        "deterministic", RUNS, "skips any on device benchmarking in Inductor if we know they affect numerics", _CONFIG
    ),
    Promise(
        "batch_invariant", BATCH, "stable per-sample compiled kernel across batch sizes", _CONFIG, devices=("cuda",)
    ),
)


def find_promise(aspect: str, settings: Mapping[str, Any], device: str) -> Promise | None:
    """The first promise of this kind that the settings of a case make torch give; None without one."""
    given = (one for one in PROMISES if one.aspect == aspect and settings.get(one.setting) and device in one.devices)
    return next(given, None)


def accuse(promise: Promise, value: str, judgement: Judgement) -> Judgement:
    """That `promise` is broken for a value; `judgement` is that on its numbers."""
    broken = BrokenPromise(value, promise.aspect, promise.setting, promise.sentence, promise.source)
    return Judgement(Verdict.BROKEN_PROMISE, broken, judgement.numbers)


def judge_row(judgement: Judgement, case: CaseRun, subject: Subject) -> Judgement:
    """`judgement`, or that the first batch row alone gives other outputs than within the batch.

    Products and fused attention are computed by libraries that promise nothing. So nobody is accused where the row is
    another one in eager, or in the graph that Inductor's passes leave, run operation by operation.
    """
    promise = find_promise(BATCH, subject.options, case.device)
    if promise is None or not case.request.row:
        return judgement
    for one in (find(EAGER), find("passes"), subject):
        try:
            value = _find_dependent(case, replace(one, options=subject.options))
        except Exception:  # a row that does not run is another case
            return judgement
        if value is not None:
            return accuse(promise, value, judgement) if one is subject else judgement
    return judgement


def _find_dependent(case: CaseRun, subject: Subject) -> str | None:
    """The first output of which the first batch row depends on the others."""
    alone = Program(case.request.row, case.device)
    batch = case.program.inputs()
    pairs = zip(batch, alone.inputs(), strict=True)
    row = [_cut(value, like).clone() if torch.is_tensor(like) else like for value, like in pairs]
    outputs: list[dict[str, Tensor]] = []
    for program, inputs in ((case.program, batch), (alone, row)):
        module = program.module(case.request.training)
        torch._dynamo.reset()
        with subject.apply_settings():
            call = subject.compile(module, case.dynamic)
            outputs.append(execute(call, module, [inputs], training=False, watched=True).outputs)
    alone.close()
    whole, part = outputs
    return next((name for name, value in part.items() if not same_bits(_cut(whole[name], value), value)), None)


def _cut(value: Tensor, like: Tensor) -> Tensor:
    """The beginning of a tensor, along every axis, with the shape of `like`."""
    return value[tuple(map(slice, like.shape))]
