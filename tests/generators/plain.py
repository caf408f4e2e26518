"""Contracts, and cases, run in float64: what contracts and stand-ins are measured with."""

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from generators.program.attention_options import OPTIONS, TENSORS, Contract
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import source
from generators.program.type_check import check
from tests.kernels.reference import math_attention

LOWEST = torch.finfo(torch.float64).min
_METHODS = re.compile(r"\.(float|half|bfloat16)\(\)")
_DTYPES = re.compile(r"torch\.(float32|bfloat16|float16)\b")


def attend(q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any) -> Tensor:
    """The reference, which drops everything where it drops out."""
    out = math_attention(q, k, v, **options)
    if dropout is None:
        return out
    assert dropout[0] == 1.0, "dropped out at random: not to be compared"
    return out * 0.0


def by_contract(contract: Contract, values: dict[str, Tensor]) -> Tensor:
    """What a contract says its output is."""
    q, k, v = (values[name] for name in (contract.q, contract.k, contract.v))
    found = {field: values[name] for field, name in contract.reads.items() if field not in ("q", "k", "v")}
    if contract.layout == "bsd":
        q, k, v = (x[:, None] for x in (q, k, v))
        found.update(
            {field: found[field][:, None] for field in ("mask", "bias") if field in found and found[field].ndim == 3}
        )
    if contract.layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = found.pop("mask", None)
    if mask is not None and contract.mask_means == "drop":
        mask = ~mask
    # The lowest number of a dtype is float64's own in a program that runs in float64.
    fill = LOWEST if -math.inf < contract.fill < -1e30 or contract.fill == -65504.0 else contract.fill
    options: dict[str, Any] = {name: getattr(contract, name) for name in OPTIONS if name not in TENSORS} | found
    options |= {"mask": mask, "dropout": (contract.dropout, 0) if contract.dropout else None}
    out = attend(q, k, v, scale=contract.scale, fill=fill, **options)
    return {"bhsd": out, "bshd": out.transpose(1, 2), "bsd": out[:, 0]}[contract.layout]


@dataclass
class Run:
    """What a text gave: its outputs, and in training the gradient of each floating input and parameter."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]


def in_float64(text: str, *, training: bool) -> Run:
    """A case's text run with float64 in place of every other floating dtype."""
    text = _DTYPES.sub("torch.float64", _METHODS.sub(".double()", text))
    scope: dict[str, object] = {"attend": attend}
    exec(text, scope)
    module = scope["Module"]().double().train(training)  # type: ignore[operator]
    arguments = [x.double() if x.is_floating_point() else x for x in scope["inputs"]()]  # type: ignore[operator]
    leaves = [x.requires_grad_(training) for x in arguments if x.is_floating_point()]
    leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
    # The fused CPU kernel is not a reference: with a negative scale and is_causal torch 2.13.0 gives NaN.
    with torch.set_grad_enabled(training), sdpa_kernel(SDPBackend.MATH):
        found = module(*arguments)
    outputs = list(found) if isinstance(found, tuple) else [found]
    differentiable = [x for x in outputs if x.requires_grad]
    if not (training and differentiable):
        return Run(outputs, [])
    cotangents = [
        torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype) for x in differentiable
    ]
    return Run(
        [x.detach() for x in outputs], list(torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True))
    )


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results agree. A row of scores without keys is NaN as most people write attention, and 0 in ours."""
    return torch.allclose(a.nan_to_num(), b.nan_to_num(), rtol=1e-5, atol=1e-5)


def same(one: Run, other: Run) -> bool:
    """Whether outputs and gradients agree, and no gradient is missing."""
    pairs = [*zip(one.outputs, other.outputs, strict=True), *zip(one.gradients, other.gradients, strict=True)]
    return all(a is not None and b is not None and close(a, b) for a, b in pairs)


def run_both(case: Case) -> tuple[Run, Run]:
    """A valid case as it is, and with its regions as plain operations."""
    check(case)
    ours, plain = (in_float64(source(case, plain=plain), training=case.training) for plain in (False, True))
    return ours, plain


def overwrites(case: Case) -> bool:
    """Whether a step works in place, so that values can't be looked at afterwards."""
    return any(op.attr("form") == "in_place" for op in case.ops)


def agrees(case: Case, *, as_sdpa: bool = False) -> bool:
    """Whether outputs and gradients of the stub are the case's; what an empty row makes NaN is not compared."""
    text = emit_attention_stub(case, as_sdpa=as_sdpa)
    assert text is not None
    expected, got = (in_float64(t, training=case.training) for t in (source(case), text))
    if [g is None for g in expected.gradients] != [g is None for g in got.gradients]:
        return False
    pairs = [
        *zip(expected.outputs, got.outputs, strict=True),
        *((a, b) for a, b in zip(expected.gradients, got.gradients, strict=True) if a is not None and b is not None),
    ]
    return all(close(a[~a.isnan()], b[~a.isnan()]) for a, b in pairs)
