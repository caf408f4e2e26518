"""Calls of torch's functions are read, whichever way arguments are given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzz.check.module.recorder import CallRecorder
from fuzz.importing.translate import KNOWN, translate
from generators.program.sizes import Size

loose: Any = torch


def read(call: Callable[[Tensor, Tensor], Any]) -> Any:
    """The operations of a call, each with its arguments and attributes; and those that no operation is."""
    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    recorder = CallRecorder(nn.Identity().eval(), KNOWN, [("x", "argument", x), ("y", "argument", y)])
    with recorder.watch_modules(), recorder:
        result = call(x, y)
    program = translate(recorder.finish(result, training=False, autocast=""), {}).program
    return [(op.kind, op.args, dict(op.attrs)) for op in program.ops], list(program.missing)


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda x, _: torch.var(x, False), ("var", ("x",), {"axes": (), "unbiased": False})),
        (lambda x, _: x.var(1, False), ("var", ("x",), {"dim": 1, "unbiased": False})),
        (lambda x, _: x.std(dim=0, unbiased=True, keepdim=True), ("std", ("x",), {"dim": 0, "keepdim": True})),
        (lambda x, _: x.std(axis=[1], correction=0), ("std", ("x",), {"axes": (1,), "unbiased": False})),
        (lambda x, _: torch.sum(input=x), ("sum", ("x",), {"axes": ()})),
        (torch.max, ("maximum", ("x", "y"), {})),
        (lambda x, y: x.max(other=y), ("maximum", ("x", "y"), {})),
        (lambda x, _: x.max(), ("max", ("x",), {"axes": ()})),
        (lambda x, y: x.clamp(max=y), ("clamp", ("x", "y"), {"bound": "max"})),
        (lambda x, _: x.clamp(0.5), ("clamp", ("x",), {"min": 0.5})),
        (lambda x, _: x.norm("fro", 1), ("norm", ("x",), {"dim": 1})),
        (
            lambda x, _: loose.linalg.vector_norm(x, ord=1, dim=1),
            ("norm", ("x",), {"dim": 1, "form": "linalg", "order": 1}),
        ),
        (lambda x, _: functional.relu(x, inplace=True), ("relu_", ("x",), {})),
        (lambda x, _: functional.normalize(x), ("normalize", ("x",), {"dim": 1})),
        (lambda x, _: functional.dropout(x), ("dropout", ("x",), {"active": "always", "p": 0.5})),
        (lambda x, _: x.diagonal(0, -1, -2), ("diagonal", ("x",), {"dim0": -1, "dim1": -2})),
        (lambda x, _: x.roll(1, 1), ("roll", ("x",), {"shifts": (Size.of(1),), "dims": (1,)})),
        (lambda x, y: x.where(y > 0, y), ("where", ("gt", "x", "y"), {})),
        (lambda x, _: torch.split(x, 1), ("split", ("x",), {"size": Size.of(1), "dim": 0, "index": 1})),
        (lambda x, y: x.view(y.shape), ("view", ("x",), {"sizes": (Size.of(2), Size.of(3))})),
        (lambda x, _: nn.Softmax(1)(x), ("softmax", ("x",), {"dim": 1, "form": "functional"})),
        (lambda x, _: nn.MaxPool1d(2, stride=1)(x[None])[0], ("select", ("max_pool1d",), {})),
        (lambda x, _: x.norm(p=2, dim=1, dtype=torch.float64), None),
        (lambda x, _: functional.normalize(x, eps=1e-3), None),
        (lambda x, _: x.diagonal(1), None),
        (lambda x, _: torch.diff(x, 2), None),
        (lambda x, y: torch.diff(x, append=y), None),
        (lambda x, y: functional.layer_norm(x, (3,), bias=y[0]), None),
    ],
)
def test_a_call_is_read(call: Callable[[Tensor, Tensor], Any], op: Any) -> None:
    """An argument that no operation has is refused, unless it says what torch's default says."""
    made, missing = read(call)
    assert (made[-1] == op and not missing) if op else len(missing) == 1


def test_a_function_of_two_results_is_two_operations() -> None:
    assert read(lambda x, _: x.max(1))[0] == [("max", ("x",), {"dim": 1}), ("argmax", ("x",), {"dim": 1})]
    assert read(lambda x, _: x.sort())[0] == [("sort", ("x",), {}), ("sort", ("x",), {"part": "indices"})]
    pooled = read(lambda x, _: nn.MaxPool1d(2, return_indices=True)(x[None]))
    assert ([kind for kind, *_ in pooled[0]], pooled[1]) == (["unsqueeze", "max_pool1d", "max_pool1d"], [])
    places = ("median", ("x",), {"dim": 1, "form": "indices"})
    assert read(lambda x, _: x.median(1))[0] == [("median", ("x",), {"dim": 1}), places]
