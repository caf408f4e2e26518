import json
import math

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
    Hello("2.13.0", "3.11.7", "cpu", "g++ 12.2", 17, "x86_64", ("passes",), TAKES, {"rewrites": "torch.none"}),
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
