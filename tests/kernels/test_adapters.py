"""Adapters of functions on the CPU, where their packages are installed: numbers, gradients and refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.judge.attention.judge import judge
from fuzz.check.run.attention.call import Call
from fuzz.check.torch_api.exceptions import find_refusal
from fuzz.protocol.capabilities import Capabilities

ADAPTERS = {
    "jax:attention": "jax",
    "keras:attention": "keras",
    "mlx:attention": "mlx.core",
    "onnx:attention": "onnx",
    "onnx:attention_23": "onnx",
    "onnx:onnxruntime": "onnxruntime",
    "onnx:openvino": "openvino",
}
Attend = Callable[..., Tensor]


@pytest.fixture(params=ADAPTERS)
def attend(request: pytest.FixtureRequest) -> Attend:
    pytest.importorskip(ADAPTERS[request.param])
    module, name = request.param.split(":")
    function: Attend = getattr(pytest.importorskip(f"kernels.adapters.{module}"), name)
    return function


def read(attend: Attend) -> Capabilities:
    return Capabilities.read(attend.capabilities)  # type: ignore[attr-defined]


def call(attend: Attend, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    """Makes a call with strided inputs and grouped heads, and judges it as a worker does."""
    declared = read(attend)
    q, k = torch.randn(2, 3, 4, 8, dtype=dtype).transpose(1, 2), torch.randn(2, 2, 5, 8, dtype=dtype)
    given = {"q": q, "k": k, "v": torch.randn(2, 2, 5, 6 if declared.value_dim else 8, dtype=dtype), **options}
    names = [name for name in ("q", "k", "v", "bias", "sinks") if name in given and declared.training]
    leaves = {name: given[name].clone().requires_grad_() for name in names}
    out = attend(**given | leaves, scale=0.5)
    made = Call(given.pop("q"), given.pop("k"), given.pop("v"), {**given, "scale": 0.5}, out.detach())
    if names:
        made.dout, made.wanted, made.differentiable = torch.randn_like(out), tuple(f"d{name}" for name in names), True
        found = torch.autograd.grad(out, list(leaves.values()), made.dout)
        made.gradients = {f"d{name}": gradient for name, gradient in zip(names, found, strict=True)}
    assert judge(made, declared.rounds).failure is None


def test_a_plain_call_is_right_in_every_declared_dtype(attend: Attend) -> None:
    for dtype in read(attend).dtypes or ("float32", "bfloat16", "float16"):
        call(attend, getattr(torch, dtype))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": torch.tensor([[True, False, True, True, False]] * 3)},
        {"bias": torch.linspace(-2, 2, 15).view(3, 5)},
        {"softcap": 0.5},
        {"sinks": torch.tensor([0.0, 1.0, -1.0, 2.0])},
        {"window": (1, 2), "causal": "declared"},
        {"causal": "declared"},
    ],
    ids=" ".join,
)
def test_an_option_is_taken_as_defined(attend: Attend, options: dict[str, Any]) -> None:
    (corner,) = read(attend).causal or ()
    try:
        call(attend, **options | ({"causal": corner} if "causal" in options else {}))
    except (NotImplementedError, TypeError) as refusal:
        pytest.skip(str(refusal))


def test_causal_is_from_the_declared_corner(attend: Attend) -> None:
    (corner,) = read(attend).causal or ()
    q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4), torch.eye(4)[None, None]
    weights = attend(q, k, v, scale=1.0, causal=corner)
    assert (weights[0, 0] > 0).sum(-1).tolist() == ([1, 2] if corner == "top_left" else [3, 4])


def test_a_row_that_keeps_no_key_gives_zeros_or_is_refused(attend: Attend) -> None:
    q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4), torch.eye(4)[None, None]
    mask = torch.tensor([[False] * 4, [True, False, False, False]])
    try:
        rows = attend(q, k, v, scale=1.0, mask=mask)
    except NotImplementedError:
        return
    assert rows[0, 0].tolist() == [[0.0] * 4, [1.0, 0.0, 0.0, 0.0]]


def test_refusals_of_onnxruntime_are_no_findings() -> None:
    attend = pytest.importorskip("kernels.adapters.onnx").onnxruntime
    pytest.importorskip("onnxruntime")
    x = torch.zeros(1, 1, 2, 4)
    for options in ({"scale": 0.0}, {"scale": 1.0, "mask": torch.ones(2, dtype=torch.bool)}):
        with pytest.raises(Exception, match="was false") as caught:
            attend(x, x, x, **options)
        assert find_refusal(caught.value, read(attend).refuses) is not None
