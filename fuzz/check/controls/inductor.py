"""Parts of Inductor switched off, changed or watched. A torch that lacks one raises `SubjectError` on entering."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fuzz.check.coverage import rewrite_name
from fuzz.check.exceptions import SubjectError
from fuzz.check.torch_internals import patch, require
from fuzz.protocol.controls import Observation, Operand, PatternMatched


@contextmanager
def refuse_matches(refuses: Callable[[Any, Any], bool]) -> Iterator[None]:
    """While entered, the pattern matcher of every pass skips a match where `refuses(entry, match)`."""
    matcher = require("torch._inductor.pattern_matcher", "PatternMatcherPass")
    apply = require("torch._inductor.pattern_matcher", "PatternMatcherPass.apply")

    def apply_refusing(self: Any, graph: Any) -> Any:
        entries = [entry for listed in list(self.patterns.values()) for entry in listed]
        checks = [(entry, entry.extra_check) for entry in {id(entry): entry for entry in entries}.values()]
        for entry, check in checks:
            entry.extra_check = lambda match, entry=entry, check=check: not refuses(entry, match) and check(match)
        try:
            return apply(self, graph)
        finally:
            for entry, check in checks:
                entry.extra_check = check

    with patch(matcher, "apply", apply_refusing):
        yield


def disable_rewrites(is_off: Callable[[str], bool]) -> AbstractContextManager[None]:
    """While entered, rewrites do not fire where `is_off(name)`."""
    return refuse_matches(lambda entry, _: is_off(rewrite_name(entry)))


def record_matches(record: Callable[[Observation], None]) -> AbstractContextManager[None]:
    """While entered, records every match of a pattern of attention with its operands; changes nothing."""

    def refuses(entry: Any, match: Any) -> bool:
        name = rewrite_name(entry)
        if "sfdp" in name:
            operands = [_operand(key, value) for key, value in match.kwargs.items() if not key.startswith("tangents")]
            record(PatternMatched(pattern=name, operands=tuple(operands)))
        return False

    return refuse_matches(refuses)


def _operand(name: str, value: Any) -> Operand:
    tensor = getattr(value, "meta", {}).get("val") if hasattr(value, "meta") else value
    if not isinstance(tensor, torch.Tensor):
        return Operand(name, text=str(value))
    return Operand(
        name,
        shape=tuple(map(str, tensor.shape)),
        stride=tuple(map(str, tensor.stride())),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )


@contextmanager
def disable_fusion() -> Iterator[None]:
    """While entered, Inductor's scheduler puts no two operations into one kernel."""
    require("torch._inductor.scheduler", "Scheduler.can_fuse")
    with patch(require("torch._inductor.scheduler", "Scheduler"), "can_fuse", lambda *_args, **_options: False):
        yield


@contextmanager
def fall_back_to_eager(operation: str) -> Iterator[None]:
    """While entered, calls of that operation ("relu") are not lowered: the compiled program calls eager's."""
    name = "fallback_node_due_to_unsupported_type"
    original = require("torch._inductor.graph", name)

    def changed(node: Any, *args: Any, **options: Any) -> Any:
        packet = getattr(node.target, "overloadpacket", None)
        return str(packet).rpartition(".")[2] == operation or original(node, *args, **options)

    with patch(importlib.import_module("torch._inductor.graph"), name, changed):
        yield


@contextmanager
def patch_config(**values: Any) -> Iterator[None]:
    """While entered, Inductor has these settings, dots written as two underscores."""
    config: Any = importlib.import_module("torch._inductor.config")
    wanted = {name.replace("__", "."): value for name, value in values.items()}
    for name in wanted:
        if not hasattr(config, name):
            raise SubjectError(f"torch {torch.__version__} has no torch._inductor.config.{name}")
    with config.patch(wanted):
        yield
