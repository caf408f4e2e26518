"""All controls by name. `Control.argument` must match the pattern given here; "" takes none."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fuzz.check.controls import inductor
from fuzz.check.controls.kernels import compare_kernels
from fuzz.check.controls.passes import compare_decompositions, compare_passes
from fuzz.check.settings import patch_config
from fuzz.check.subject_builder import Subject
from fuzz.protocol.controls import Control, Observation

Record = Callable[[Observation], None]


class ControlError(Exception):
    """There is no such control, or the subject can't be run under it; the text is one line."""


@dataclass(frozen=True)
class ControlSpec:
    """One control: `enter` makes what surrounds compiling and running."""

    argument: str
    enter: Callable[[str, Record], AbstractContextManager[Any]]


def _config(name: str, value: Any) -> ControlSpec:
    return ControlSpec("", lambda _argument, _record: patch_config({name: value}))


def _without(is_off: Callable[[str, str], bool], argument: str = "") -> ControlSpec:
    return ControlSpec(argument, lambda given, _: inductor.disable_rewrites(lambda name: is_off(name, given)))


def _is_pattern(name: str, number: str) -> bool:
    return re.match(rf"_?sfdp_pattern_{number}(?!\d)", name) is not None


CONTROLS: dict[str, ControlSpec] = {
    "pattern_matcher_off": _config("pattern_matcher", False),
    "casts_emulated": _config("emulate_precision_casts", True),
    "unvectorized": _config("cpp.simdlen", 1),
    "unfused": ControlSpec("", lambda _, __: inductor.keep_operations_apart()),
    "passes_compared": ControlSpec("", lambda _, record: compare_passes(record)),
    "kernels_compared": ControlSpec("", lambda _, record: compare_kernels(record)),
    "decompositions_compared": ControlSpec("", lambda _, record: compare_decompositions(record)),
    "eager": ControlSpec(r"\w+", lambda operation, _: inductor.fall_back_to_eager(operation)),
    "matches_recorded": ControlSpec("", lambda _, record: inductor.record_matches(record)),
    "constants_compared": ControlSpec("", lambda _, __: inductor.compare_constants()),
    "without_attention_patterns": _without(lambda name, _: "sfdp" in name),
    "without_pattern": _without(_is_pattern, r"\d+"),
    "only_pattern": _without(lambda name, number: "sfdp" in name and not _is_pattern(name, number), r"\d+"),
    "without_rewrite": _without(lambda name, rewrite: name == rewrite, r".+"),
    "without_pass": ControlSpec(r".+", lambda name, _: patch_config({"disabled_passes": name})),
    "sdpa": ControlSpec("|".join(inductor.FORMS), lambda form, _: inductor.replace_sdpa(form)),
}


def apply_controls(subject: Subject, controls: Iterable[Control], record: Record) -> Subject:
    """`subject` under these controls; `record` is called with what they observe. Raises `ControlError`."""
    return functools.reduce(functools.partial(_apply, record), controls, subject)


def _apply(record: Record, subject: Subject, control: Control) -> Subject:
    spec = CONTROLS.get(control.name)
    if spec is None:
        raise ControlError(f"there is no control {control.name!r}")
    if not re.fullmatch(spec.argument, control.argument):
        raise ControlError(f"the control {control.name} does not take the argument {control.argument!r}")
    if subject.attention is not None:
        raise ControlError(f"{subject.name} is an attention function: {control.name} is for compilers")
    outer, inner = subject.under, functools.partial(spec.enter, control.argument, record)

    @contextmanager
    def under() -> Iterator[None]:
        with outer(), inner():
            yield

    return replace(subject, under=under)
