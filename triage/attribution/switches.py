"""Parts of Inductor switched off or changed one at a time. Runs in a worker: standard library and torch only.

The only module of triage that touches private names of torch. A torch that lacks one says so in a `SubjectError`.
"""

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from fuzz.check.coverage import rewrite_name
from fuzz.check.subjects.subject import SubjectError

_MATCHER = "torch._inductor.pattern_matcher"
_FUSE = "torch._inductor.fx_passes.fuse_attention"
_SDPA = "_scaled_dot_product_attention"
_COUNTERS = ("torch._dynamo.utils", "counters")

Refuses = Callable[[Any, Any], bool]
"""Whether an entry of the matcher is refused a match that it found."""


def part(module: str, name: str) -> Any:
    """A private name of torch. Raises `SubjectError` where this torch has none."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SubjectError(f"torch {torch.__version__} has no {module}.{name}: no control by it") from error


def tell(kind: str, name: str, **facts: object) -> None:
    """Say something of this run, which arrives in `SubjectResult.reached` as "told KIND NAME {...}"."""
    counters = part(*_COUNTERS)
    counters["attnfuzz"][" ".join([kind, name, json.dumps(facts, sort_keys=True)])] += 1


@contextmanager
def refusing(refuses: Refuses) -> Iterator[None]:
    """While entered, the pattern matcher leaves alone what `refuses` says, in every pass."""
    matcher = part(_MATCHER, "PatternMatcherPass")
    apply = getattr(matcher, "apply", None)
    if apply is None:
        raise SubjectError(f"torch {torch.__version__} has no PatternMatcherPass.apply: no control by it")
    part(*_COUNTERS)  # what is missing shall show here: within a pass it would be an error of the compiler

    def applied(self: Any, graph: Any) -> Any:
        entries = [entry for listed in list(self.patterns.values()) for entry in listed]
        checks = [(entry, entry.extra_check) for entry in {id(entry): entry for entry in entries}.values()]
        for entry, check in checks:
            entry.extra_check = _checked(entry, check, refuses)
        try:
            return apply(self, graph)
        finally:
            for entry, check in checks:
                entry.extra_check = check

    matcher.apply = applied
    try:
        yield
    finally:
        matcher.apply = apply


def _checked(entry: Any, check: Callable[[Any], Any], refuses: Refuses) -> Callable[[Any], Any]:
    return lambda match: False if refuses(entry, match) else check(match)


def without(wanted: Callable[[str], bool]) -> AbstractContextManager[None]:
    """While entered, rewrites whose name is `wanted` do not fire."""
    return refusing(lambda entry, _: wanted(rewrite_name(entry)))


def watching() -> AbstractContextManager[None]:
    """While entered, tells of every pattern of attention that is tried with which operands, and changes nothing."""

    def refuses(entry: Any, match: Any) -> bool:
        name = rewrite_name(entry)
        if "sfdp" in name:
            operands = {key: described(value) for key, value in match.kwargs.items() if not key.startswith("tangents")}
            tell("matched", name, **operands)
        return False

    return refusing(refuses)


def described(value: Any) -> Any:
    """An operand of a match as JSON-ready data: shape, strides and dtype of a tensor, else its text."""
    tensor = getattr(value, "meta", {}).get("val") if hasattr(value, "meta") else value
    if isinstance(tensor, torch.Tensor):
        sizes = [str(size) for size in tensor.shape]
        return {
            "shape": sizes,
            "stride": [str(s) for s in tensor.stride()],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
    return str(value)


@contextmanager
def sdpa_called(call: Callable[..., Any]) -> Iterator[None]:
    """While entered, replacements of attention compute `call(sdpa, q, k, v, **options)` where they would call sdpa."""
    original = part(_FUSE, _SDPA)
    module = importlib.import_module(_FUSE)

    def changed(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return call(original, query, key, value, **options)

    setattr(module, _SDPA, changed)
    try:
        yield
    finally:
        setattr(module, _SDPA, original)


def _shape(*shapes: Any) -> tuple[Any, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def mask_added(sdpa: Any, q: Any, k: Any, v: Any, *, attn_mask: Any = None, **options: Any) -> Any:
    """A boolean mask is added to the scores as 0 and 1, as the program adds it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = attn_mask.to(q.dtype)
    return sdpa(q, k, v, attn_mask=attn_mask, **options)


def mask_expanded(sdpa: Any, q: Any, k: Any, v: Any, *, attn_mask: Any = None, **options: Any) -> Any:
    """The mask is given the shape of the scores."""
    if attn_mask is not None:
        shape = (*_shape(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
        attn_mask = attn_mask.expand(_shape(attn_mask.shape, shape))
    return sdpa(q, k, v, attn_mask=attn_mask, **options)


def operands_expanded(sdpa: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Query, key, value and mask are given the same batches and heads, and the scores' rank, as matmul would."""
    mask = options.get("attn_mask")
    scores = _shape(q.shape[:-2], k.shape[:-2])
    rows = (*scores, q.shape[-2], k.shape[-2])
    weights = _shape(rows, mask.shape) if mask is not None else rows
    outer = _shape(weights[:-2], v.shape[:-2])
    q = q.expand(*outer, weights[-2], q.shape[-1])
    k = k.expand(*outer, weights[-1], k.shape[-1])
    v = v.expand(*outer, v.shape[-2], v.shape[-1])
    if mask is not None:
        options["attn_mask"] = mask.expand(*outer, *weights[-2:])
    return sdpa(q, k, v, **options)


def scale_as_tensor(sdpa: Any, q: Any, k: Any, v: Any, *, scale: Any = None, **options: Any) -> Any:
    """A scale that is a tensor is multiplied with the query: the fused call takes numbers alone."""
    if isinstance(scale, torch.Tensor):
        q, scale = (q * scale).to(q.dtype), 1.0
    return sdpa(q, k, v, scale=scale, **options)


def operands_copied(sdpa: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Query, key and value are copied into contiguous memory first."""
    copies = (x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
    return sdpa(*copies, **options)


def by_steps(_sdpa: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Attention in plain steps in the place of the fused call, with all that the replacement hands over."""
    mask, dropout = options.get("attn_mask"), options.get("dropout_p", 0.0)
    scale = options.get("scale")
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if options.get("is_causal"):
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout)
    return weights.to(v.dtype) @ v


@contextmanager
def unfused() -> Iterator[None]:
    """While entered, Inductor's scheduler puts no two operations into one kernel."""
    scheduler = part("torch._inductor.scheduler", "Scheduler")
    original = getattr(scheduler, "can_fuse", None)
    if original is None:
        raise SubjectError(f"torch {torch.__version__} has no Scheduler.can_fuse: no control by it")
    scheduler.can_fuse = lambda *_args, **_options: False
    try:
        yield
    finally:
        scheduler.can_fuse = original


@contextmanager
def left_to_eager(name: str) -> Iterator[None]:
    """While entered, calls of that operation ("relu") are not lowered: the compiled program calls eager's."""
    original = part("torch._inductor.graph", "fallback_node_due_to_unsupported_type")
    graph = importlib.import_module("torch._inductor.graph")

    def changed(node: Any, *args: Any, **options: Any) -> Any:
        packet = getattr(node.target, "overloadpacket", None)
        return str(packet).rpartition(".")[2] == name or original(node, *args, **options)

    setattr(graph, original.__name__, changed)
    try:
        yield
    finally:
        setattr(graph, original.__name__, original)


@contextmanager
def configured(**values: Any) -> Iterator[None]:
    """While entered, Inductor has these settings, dots written as two underscores."""
    config: Any = importlib.import_module("torch._inductor.config")
    wanted = {name.replace("__", "."): value for name, value in values.items()}
    for name in wanted:
        if not hasattr(config, name):
            raise SubjectError(f"torch {torch.__version__} has no setting {name} of Inductor: no control by it")
    with config.patch(wanted):
        yield


def tiled(function: Callable[..., Any], tile: tuple[int, int]) -> Callable[..., Any]:
    """An attention function that works on so many queries and keys at once. Raises `SubjectError` where it can't be told to."""
    if "tile" not in inspect.signature(function).parameters:
        raise SubjectError(f"{getattr(function, '__name__', function)} has no parameter `tile`")

    @functools.wraps(function)
    def attention(*args: Any, **options: Any) -> Any:
        return function(*args, **{**options, "tile": tile})

    return attention


def scheduled(function: Callable[..., Any], changes: dict[str, int]) -> Callable[..., Any]:
    """An attention function of a copy of the bundled kernels, launched with other warps or stages."""
    package = function.__module__.rpartition(".")[0]
    try:
        launch: Any = importlib.import_module(f"{package}.launch")
        forward, backward = launch.forward_schedule, launch.backward_schedule
    except (ImportError, AttributeError) as error:
        raise SubjectError(f"{function.__module__} has no schedule: {error}") from error

    @functools.wraps(function)
    def attention(*args: Any, **options: Any) -> Any:
        launch.forward_schedule = lambda *a, **o: replace(forward(*a, **o), **changes)
        launch.backward_schedule = lambda *a, **o: tuple(replace(plan, **changes) for plan in backward(*a, **o))
        try:
            return function(*args, **options)
        finally:
            launch.forward_schedule, launch.backward_schedule = forward, backward

    return attention
