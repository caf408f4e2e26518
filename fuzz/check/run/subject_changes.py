"""The worker's side of experiments: settings, hooks into torch, and limits on the steps of compiling.

Entering an experiment raises `SubjectError` if this torch lacks a name that the experiment needs.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.check.run.subject_builder import Subject, of_compiler
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.coverage import rewrite_name
from fuzz.check.torch_api.exceptions import SubjectError, find_device_fault
from fuzz.check.torch_api.torch_internals import intercept, wrap
from fuzz.check.torch_api.torch_places import find_places, find_step
from fuzz.compilers.interface import CompiledCall
from fuzz.compilers.table import VARIATIONS
from fuzz.experiments import EXPERIMENTS, SHARDING, FirstNode, Noted, StepLimit, Trial, Varied, WithSetting
from fuzz.protocol import NodeParted, Observation, Running, StepsTaken

Record = Callable[[Observation], None]
_KINDS = {"decomposition": "decomposition", "lowerings": "lowering"}
_KINDS |= {f"{stage}_passes": "pass" for stage in ("pre_grad", "joint_graph", "post_grad")}
"""Kinds of steps, by their names in torch's compiler bisector."""


def refuse_matches(refuses: Callable[[Any, Any], bool]) -> AbstractContextManager[None]:
    """While entered, the pattern matcher of every pass skips a match if `refuses(entry, match)`."""

    def apply_refusing(apply: Any, matcher: Any, graph: Any) -> Any:
        entries = {id(entry): entry for listed in matcher.patterns.values() for entry in listed}
        checks = [(entry, entry.extra_check) for entry in entries.values()]
        for entry, check in checks:
            entry.extra_check = lambda match, entry=entry, check=check: not refuses(entry, match) and check(match)
        try:
            return apply(matcher, graph)
        finally:
            for entry, check in checks:
                entry.extra_check = check

    return intercept("torch._inductor.pattern_matcher", "PatternMatcherPass.apply", apply_refusing)


@contextmanager
def limit_steps(kind: str, limit: str, record: Record) -> Iterator[None]:
    """While entered, compiling leaves out steps of this kind.

    Steps are decompositions, passes and lowerings, as torch's bisector counts them, and rewrites within passes. On exit
    `record` is called with the steps taken.

    `limit`: the number of the first steps, which alone are taken; or the name of the steps that are left out.
    `_sfdp_pattern_5` also names the forms of this pattern, such as `_sfdp_pattern_5_half_inference`.
    """
    taken: list[str] = []
    left_out: list[Any] = []

    def is_left_out(found: str, name: Callable[[], str], step: Any) -> bool:
        if found != kind:
            return False
        is_out = len(taken) >= int(limit) if limit.isdecimal() else re.match(rf"{re.escape(limit)}(_|$)", name())
        (left_out if is_out else taken).append(step if is_out else name())
        return bool(is_out)

    def is_disabled(_backend: str, subsystem: str, describe: Callable[[], str] = str) -> bool:
        step = find_step(sys._getframe(1))
        return is_left_out(_KINDS.get(subsystem, ""), lambda: _read_name(describe()), step)

    with (
        wrap("torch._inductor.compiler_bisector", "CompilerBisector.disable_subsystem", lambda _: is_disabled),
        refuse_matches(lambda entry, _: is_left_out("pass", lambda: rewrite_name(entry), entry)),
    ):
        try:
            yield
        finally:
            # Entries have their own checks again.
            places = next((found for step in left_out if (found := find_places(step))), ())
            record(StepsTaken(len(taken), taken[-1] if taken else "", places))


def _read_name(text: str) -> str:
    """The name of a pass, of an operator ("<OpOverload(op='aten.silu', ...)>"), or of a node's operation ("relu_2")."""
    found = re.search(r"op='([\w.]+)'", text)
    return found[1] if found else re.sub(r"_\d+$", "", text)


def enter(trial: Trial, record: Record = lambda _: None) -> AbstractContextManager[None]:
    """A context in which the experiment's change is active."""
    match EXPERIMENTS[trial.experiment].change:
        case WithSetting(name, value):
            return settings.apply({name: value})
        case StepLimit() if trial.experiment == SHARDING:
            from fuzz.check.torch_api.whole_operations import limit_sharding

            return limit_sharding(trial.argument, record)
        case StepLimit():
            return limit_steps(trial.experiment, trial.argument, record)
        case Noted():
            return _Noting(record)
    raise SubjectError(f"{trial.experiment} changes nothing about a subject")


class _Noting(TorchDispatchMode):
    """Records each operation before it runs. Which kernel an operation chooses does not depend on a mode."""

    supports_higher_order_operators = True

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Programs compile as without the mode, which sees the operations that compiled code calls."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._record(Running(str(getattr(func, "overloadpacket", func))))
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            if not find_device_fault():
                self._record(Running())
            raise
        self._record(Running())
        return result


def _vary(subject: Subject, trial: Trial, record: Record) -> Subject:
    """The subject with another way to compile, or one that also looks for the first wrong node."""
    compiler, row = subject.compiler, VARIATIONS.get(trial.experiment)
    find_node = None if compiler is None else compiler.find_node
    if compiler is None or (row not in compiler.variations if row else find_node is None):
        raise SubjectError(f"{subject.name} has no {trial.experiment}")

    def compile_and_look(given: Any, inputs: tuple[Any, ...], **keywords: Any) -> CompiledCall:
        with suppress(Exception):  # such as a model that can't be evaluated
            record(NodeParted(*find_node(given, inputs, **keywords)) if find_node else NodeParted())
        return compiler.compile(given, inputs, **keywords)

    keywords = {} if row is None else {n: trial.argument if v == "{}" else v for n, v in row.keywords.items()}
    varied = replace(
        compiler, compile=compiler.compile if row else compile_and_look, keywords={**compiler.keywords, **keywords}
    )
    return replace(subject, compiler=varied, compile=of_compiler(subject.name, varied).compile)


def apply_experiments(subject: Subject, trials: Iterable[Trial], record: Record = lambda _: None) -> Subject:
    """`subject` under these experiments; `record` is called with the steps taken. Raises `SubjectError`."""
    for trial in trials:
        if isinstance(EXPERIMENTS[trial.experiment].change, Varied | FirstNode):
            subject = _vary(subject, trial, record)
            continue
        if subject.attention is not None and not isinstance(EXPERIMENTS[trial.experiment].change, Noted):
            raise SubjectError(f"{subject.name} is an attention function: {trial.experiment} is for compilers")
        caches = f"{subject.caches} {trial.experiment} {trial.argument}"
        subject = replace(subject, under=(*subject.under, functools.partial(enter, trial, record)), caches=caches)
    return subject
