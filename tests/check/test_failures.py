"""Failures survive the wire, and each is rendered in one line."""

import json
import math
from dataclasses import fields

import pytest

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import (
    BiasedErrors,
    DeviceError,
    DifferentElements,
    DropoutMask,
    DropoutStatistic,
    EmptyRowsNotZero,
    Failure,
    FaultyOperation,
    FormDiffers,
    MissingGradient,
    Nondeterministic,
    NotFinite,
    NotTaken,
    OutOfBounds,
    Process,
    ProcessLost,
    Raised,
    Refusal,
    RepeatedMask,
    StateChange,
    StateChanged,
    Value,
    Write,
    WrongValue,
)
from fuzz.protocol.render import describe
from generators.records import decode, encode

WRITES = tuple(Write("q", place, 2) for place in ("before", "after", "itself", "between"))
FAILURES: list[Failure] = [
    WrongValue(Value("output", 0), (0, 3), 0.5, 90.0, 12.0, eager_error=1e-6),
    WrongValue(Value.of_result("dq"), (0, 0, 1, 2), 0.5, 90.0, 12.0, gradient_missing=True, without_dropout=True),
    DifferentElements(Value("output", 0), 2, 7, "int64"),
    DifferentElements(Value("input", 1), 2, 7, "int64"),
    NotFinite(Value("output", 0), 3, (0, 1)),
    EmptyRowsNotZero(Value.of_result("out"), 2, (0, 0, 0, 1)),
    *(BiasedErrors(Value.of_result("out"), statistic, 1.4, 9.0, 32) for statistic in ("scale", "bias", "rms", "row")),
    MissingGradient(Value.of_result("out")),
    *(
        DropoutStatistic(Value("output", 0), name, "[:, 2]", 0.9, 256, 20.0)
        for name in ("mean", "variance", "nonfinite")
    ),
    DropoutStatistic(Value("output", 0), "variance", "", math.inf, 256, 20.0),
    DropoutStatistic(None, "slope", "", 0.8, 256, math.inf),
    DropoutMask("extreme_rate", 0.0, seen=0.5),
    DropoutMask("keep_rate", 0.2, 70, 100, expected=0.8, worst=-9.0, axis="head", index=1),
    DropoutMask("repeated", 0.2, 90, 90, seen=1.0, expected=0.68, axis="batch", lag=1),
    DropoutMask("same_for_seeds", 0.2, 90, 90, seen=1.0, expected=0.68, seeds=(7, 8)),
    DropoutMask("not_repeatable", 0.2, seeds=(7,)),
    RepeatedMask(Value("output", 1), Value("output", 3, call=2), agree=90, total=90, expected=0.5, doubt=60.0),
    RepeatedMask(Value("output", 1), axis=2, lag=4, agree=90, total=90, expected=0.5, doubt=60.0),
    FaultyOperation("aten.bmm", math.nan, 1.0, Value("output", 0), math.inf),
    FaultyOperation("aten.bmm", 0.0, 1.0, Value("output", 0), 1.0),
    OutOfBounds(WRITES),
    *(FormDiffers(aspect, "a", "b", Value("output", 0)) for aspect in ("structure", "mutation", "dtype", "strides")),
    Nondeterministic(Value("output", 0)),
    Nondeterministic(Value("output", 0), unwritten=True),
    StateChanged(tuple(StateChange(f"state {n}", "0", "1", is_restored=n > 1) for n in range(5))),
    Raised("KeyError"),
    Raised("AssertionError", place="kernel.py:12: assert q.dtype == k.dtype"),
    DeviceError("misaligned address"),
    DeviceError("an illegal memory access was encountered", "scale_rows", "kernel.py:12: scale_rows[grid](q)"),
    *(ProcessLost(how, "60", place="run (a.py)") for how in Process),
    ProcessLost(Process.EXIT, "1", last_words="no"),
    *(NotTaken(why, "it does not take the parameter causal") for why in Refusal),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.kind)
def test_a_failure_survives_json_and_takes_one_line(failure: Failure) -> None:
    sent = SubjectResult("passes", Verdict.WRONG_RESULT, failure=failure)
    received = decode(SubjectResult, json.loads(json.dumps(encode(sent), allow_nan=False)))
    assert repr(received) == repr(sent)  # NaN is not equal to itself
    line = describe(sent)
    assert line and "\n" not in line and "{" not in line


def test_every_kind_is_among_them() -> None:
    kinds = {failure.kind for failure in FAILURES}
    assert kinds == {kind.kind for kind in Failure.__subclasses__()}
    assert all(kind.__doc__ and fields(kind) for kind in Failure.__subclasses__())


@pytest.mark.parametrize("verdict", [Verdict.PRECISION_POLICY, Verdict.NONDETERMINISTIC])
def test_an_excuse_and_writes_are_told_too(verdict: Verdict) -> None:
    failure = Nondeterministic(Value("output", 0))
    alone = describe(SubjectResult("passes", Verdict.NONDETERMINISTIC, failure=failure))
    told = describe(SubjectResult("passes", verdict, failure=failure, writes=WRITES))
    assert told.startswith(alone) and len(told) > len(alone)
