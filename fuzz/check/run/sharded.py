"""A case on several ranks: its inputs are DTensors, split as its `shards` say, and every rank runs the program."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from fuzz.check.run.program import Execution, Program, Tensors, execute, same_bits
from fuzz.check.run.subject_builder import find
from fuzz.check.run.subject_changes import Record, apply_experiments
from fuzz.check.torch_api import compilation, exceptions
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.torch_internals import intercept
from fuzz.protocol import Check


@dataclass(frozen=True)
class RankProgram:
    """A program that every rank runs, and how."""

    request: Check
    subject: str
    dynamic: bool | None
    cotangents: Tensors
    options: Mapping[str, Any]  # settings
    mesh: tuple[int, ...]


def find_mesh(shards: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes of the mesh whose dimensions `shards` of a module name: an axis, or one for each of two dimensions."""
    return (2, 2) if any(isinstance(axes, list) for axes in shards.values()) else (2,)


def run_part(part: RankProgram, program: Program, mesh: DeviceMesh, record: Record = lambda _: None) -> Execution:
    """The results of `part`, equal on all ranks. Raises exceptions of the program, and `SubjectError`.

    The MATH backend computes attention: DTensor has no rule for the fused operation of the CPU.
    """
    request = part.request
    subject = apply_experiments(replace(find(part.subject), options=part.options), request.experiments, record)
    limited = intercept("torch.distributed.tensor._decompositions", _WAYS, _list_few_ways)
    with subject.apply_settings(), implicit_replication(), sdpa_kernel([SDPBackend.MATH]), limited:
        module = program.module(request.training)
        call = distribute(subject.compile(module, part.dynamic), module, mesh)
        calls = program.calls(module)
        run = execute(call, module, calls, training=request.training, cotangents=part.cotangents, watched=True)
        compilation.require_run()
    if not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state()):
        raise SubjectError("DTensor draws other random numbers")
    return run


def find_refusal(error: Exception) -> str:
    """Why DTensor refuses a program, if `error` is such a refusal; "" for a failure."""
    if isinstance(error, SubjectError):
        return str(error)
    root = exceptions.find_root(error)
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(root.__traceback__)]
    # DTensor only asserts that it writes into a DTensor. Without implicit replication, mixed tensors are refused.
    is_write = isinstance(root, AssertionError) and bool(frames) and frames[-1].get("is_inplace_op", False)
    if is_write and not isinstance(frames[-1]["args"][0], DTensor):
        return "DTensor writes into no other tensor"
    return exceptions.find_limit(error)


_WAYS = "DecompShardingStrategy._get_candidate_placements"
_MOST_WAYS = 200


def _list_few_ways(list_ways: Callable[[Any], list[Any]], schema: Any) -> list[Any]:
    """Refuses an operation without a rule if DTensor would run its definition for minutes, once for each combination of
    placements of its arguments."""
    ways = list_ways(schema)
    if len(ways) > _MOST_WAYS:
        raise SubjectError(f"DTensor would try more than {_MOST_WAYS} ways to shard {schema.op}")
    return ways


def distribute(call: Any, module: nn.Module, mesh: DeviceMesh) -> Callable[..., Any]:
    """A function of whole tensors that calls `call`, which is `module` or compiled from it, with DTensors.

    Results and gradients are whole. Inputs, parameters and buffers that the call writes to are updated.
    """
    names, shards = [*inspect.signature(module.forward).parameters], getattr(module, "shards", {})
    prefix = "" if call is module else "_orig_mod."

    def split(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        whole = DTensor.from_local(value.clone(), mesh, [Replicate()] * mesh.ndim, run_check=False)
        if name not in shards:
            return whole
        axes = shards[name] if mesh.ndim > 1 else [shards[name]]
        return whole.redistribute(mesh, [Replicate() if axis is None else Shard(axis) for axis in axes])

    def run(*inputs: Any) -> Any:
        state = dict((*module.named_parameters(), *module.named_buffers()))
        whole = [*zip(names, inputs, strict=True), *state.items()]
        parts = [split(name, value) for name, value in whole]
        given = {prefix + name: part for name, part in zip(state, parts[len(inputs) :], strict=True)}
        result = functional_call(call, given, tuple(parts[: len(inputs)]))
        with torch.no_grad():
            for (_, value), part in zip(whole, parts, strict=True):
                now = gather(part)
                if isinstance(part, DTensor) and now.shape == value.shape and not same_bits(value, now):
                    value.copy_(now)
        return tree_map(gather, result)

    return run


def gather(value: Any) -> Any:
    """A whole tensor for a DTensor; any other value unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value
