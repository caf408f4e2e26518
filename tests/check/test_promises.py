"""Which parts of a run are compared, by what a compiler promises."""

import pytest
import torch
from torch import Tensor

from fuzz.check.judge.promises import keep_promised
from fuzz.check.judge.verdict import find_stride_difference
from fuzz.check.run.program import Execution
from fuzz.compilers.interface import CompilerCapabilities
from fuzz.protocol.failures import Value

_OUTPUT = Value("output", 0)


@pytest.mark.parametrize(
    "expected",
    [
        torch.arange(12.0).view(3, 4).mT,
        torch.arange(12.0).view(3, 4).mT[None],
        torch.arange(24.0).view(3, 8)[:, ::2].mT.expand(2, 4, 3).mT,
        torch.arange(10.0).unfold(0, 4, 2).mT,
    ],
    ids=["transposed", "with a dimension of size 1", "repeated", "overlapping"],
)
def test_strides_count_for_compilers_that_promise_them(expected: Tensor) -> None:
    eager = Execution("tensor", {_OUTPUT: expected})
    run = Execution("tensor", {_OUTPUT: expected.contiguous() + 1})
    kept = keep_promised(run, eager, CompilerCapabilities())
    assert find_stride_difference(eager, kept) is None
    assert torch.equal(kept.outputs[_OUTPUT], expected + 1)
    promising = keep_promised(run, eager, CompilerCapabilities(strides=True))
    assert find_stride_difference(eager, promising) is not None
