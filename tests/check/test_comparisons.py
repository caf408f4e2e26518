"""The first step of compiling after which a value differs is found: a decomposition, a pass, a kernel."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config

from fuzz.check.controls.table import apply_controls
from fuzz.check.subject_builder import find
from fuzz.check.torch_internals import require, wrap
from fuzz.protocol import Verdict
from fuzz.protocol.controls import Control, DecompositionDiffers, KernelDiffers, Observation, PassDiffers
from tests.check.in_process import run_subject
from tests.check.sources import source

pytestmark = pytest.mark.compiles

GATED = source(
    "scores = q @ k.transpose(-2, -1)", "return (F.silu(scores.exp() * 0.5) + scores).relu() @ v", dims="1, 2, 5, 8"
)


def observe(
    subject: str, *controls: str, training: bool = False, text: str = GATED
) -> tuple[Verdict, list[Observation]]:
    seen: list[Observation] = []
    watched = apply_controls(find(subject), [Control(name) for name in controls], seen.append)
    return run_subject(watched, text=text, training=training).verdict, seen


@pytest.fixture
def dropped_product() -> Iterator[None]:
    """A pass forgets what values are multiplied with."""

    def drop(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            if isinstance(node.args[1], float):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)

    with wrap("torch._inductor.fx_passes.post_grad", "remove_assert_ops", lambda _: drop):
        yield


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.usefixtures("dropped_product")
def test_the_first_pass_after_which_a_value_differs_is_named(training: bool) -> None:
    _, (seen,) = observe("passes", "passes_compared", training=training)
    assert isinstance(seen, PassDiffers)
    assert (seen.stage, seen.name, seen.rewrite) == ("post_grad_passes", "remove_assert_ops", "")
    assert (seen.removed, seen.added) == (("aten.mul",), ()) and seen.error > 0.1


def test_passes_that_are_right_differ_nowhere() -> None:
    attention = source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v")
    for text in (GATED, attention):
        for training in (False, True):
            assert observe("passes", "passes_compared", training=training, text=text)[1] == []


@pytest.mark.parametrize(("apart", "operations"), [((), {"aten.relu", "aten.exp"}), (("unfused",), {"aten.relu"})])
def test_the_kernel_that_writes_another_value_is_named(apart: tuple[str, ...], operations: set[str]) -> None:
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        verdict, (seen,) = observe("inductor", *apart, "kernels_compared")
    assert verdict is Verdict.WRONG_RESULT and isinstance(seen, KernelDiffers)
    assert operations <= {*seen.operations} and seen.kernel.startswith("cpp_fused")
    assert not apart or len(seen.operations) == 1
    assert 0 < seen.wrong <= seen.elements and seen.error > seen.eager


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("apart", [(), ("unfused",)])
def test_kernels_that_are_right_differ_nowhere(training: bool, apart: tuple[str, ...]) -> None:
    assert observe("inductor", *apart, "kernels_compared", training=training)[1] == []


def test_a_decomposition_that_differs_from_its_operation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def decompose(x: Any) -> Any:
        return x / (1 + (-1.01 * x).exp())

    assert observe("eager", "decompositions_compared", training=True)[1] == []
    monkeypatch.setitem(
        require("torch._inductor.decomposition", "decompositions"), torch.ops.aten.silu.default, decompose
    )
    _, (seen,) = observe("eager", "decompositions_compared")
    assert isinstance(seen, DecompositionDiffers) and seen.operation == "aten.silu" and seen.error > 1e-6
