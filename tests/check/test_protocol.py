"""Messages and failures survive the wire; each failure is rendered in a line."""

import json
import math
from dataclasses import fields

import pytest

from fuzz.protocol import (
    Check,
    Exit,
    Hello,
    Message,
    ProtocolError,
    Result,
    StageStarted,
    SubjectResult,
    Unusable,
    Verdict,
    from_json,
)
from fuzz.protocol.capabilities import Capabilities
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
    RightAt,
    StateChange,
    StateChanged,
    Value,
    Write,
    WrongValue,
)
from fuzz.protocol.render import describe
from generators.records import decode, encode

RESULT = SubjectResult(
    "passes",
    Verdict.WRONG_RESULT,
    numbers={"ratio": 1e6},
    applied_rewrites=("_sfdp_pattern_1",),
    dynamo_same=False,
    seconds=0.1,
)
TAKES = {"triton": Capabilities(dtypes=("float16",), options=("mask",))}
MESSAGES = [
    Hello(
        "2.13.0",
        "3.11.7",
        "cpu",
        "g++ 12.2",
        17,
        "x86_64",
        ("passes",),
        TAKES,
        missing_hooks={"rewrites": "torch.none"},
    ),
    Unusable("no torch"),
    Check(
        7, "import torch\n", ("passes", "a.b:c"), training=True, random=True, repeat=1, settings={"a.b": 4, "c": True}
    ),
    Exit(),
    StageStarted(7, "eager"),
    Result(7, None, (RESULT,), 0.31, 812.0),
    Result(8, "RuntimeError: no", ()),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_messages_come_back_as_they_were(message: Message) -> None:
    line = message.to_json()
    assert "\n" not in line
    assert from_json(line) == message
    assert from_json(line.encode()) == message


def test_numbers_json_lacks_are_carried() -> None:
    sent = Result(1, None, (SubjectResult("passes", Verdict.OK, numbers={"up": math.inf, "none": math.nan}),))
    line = sent.to_json()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    received = from_json(line)
    assert isinstance(received, Result)
    numbers = received.results[0].numbers
    assert numbers["up"] == math.inf and math.isnan(numbers["none"])


def test_keys_of_a_later_version_are_ignored() -> None:
    assert from_json('{"kind":"stage_started","id":1,"stage":"eager","colour":"blue"}') == StageStarted(1, "eager")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "[]",
        "{}",
        '{"kind":"greeting"}',
        '{"kind":"stage_started"}',
        '{"kind":"result","id":1,"rejected":null,"results":[{"subject":"a","verdict":"fine"}]}',
        '{"kind":"result","id":1,"rejected":null,"results":3}',
        b"\xff\xfe",
    ],
)
def test_anything_else_is_an_error_in_one_line(line: str | bytes) -> None:
    with pytest.raises(ProtocolError) as error:
        from_json(line)
    assert "\n" not in str(error.value)


def test_verdicts_tell_findings_from_the_rest() -> None:
    assert not Verdict.ROUNDING.is_finding and Verdict.WRONG_RESULT.is_finding
    assert all(verdict.label and verdict.words for verdict in Verdict)
    assert all(verdict.verb for verdict in Verdict if verdict.is_finding)


WRITES = tuple(Write("q", place, 2) for place in ("before", "after", "itself", "between"))
FAILURES: list[Failure] = [
    WrongValue(Value("output", 0), (0, 3), 0.5, 90.0, 12.0, eager_error=1e-6),
    RightAt(("bfloat16", "int32")),
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
