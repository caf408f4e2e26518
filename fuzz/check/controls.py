"""Control experiments: a subject with one thing about how it compiles changed. A torch that lacks what one needs raises
`SubjectError` on entering."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from fuzz.check.coverage import rewrite_name
from fuzz.check.exceptions import SubjectError
from fuzz.check.pattern_constants import Unlike, find_differences
from fuzz.check.settings import patch_config
from fuzz.check.subject_builder import Subject
from fuzz.check.torch_internals import wrap
from fuzz.protocol import Control, StepsTaken
from fuzz.protocol.rewrites import WrongRewrite

Record = Callable[[StepsTaken], None]
_KINDS = {"decomposition": "decomposition", "lowerings": "lowering"}
_KINDS |= {f"{stage}_passes": "pass" for stage in ("pre_grad", "joint_graph", "post_grad")}
"""Kinds of steps, by what torch's bisector calls them."""


def refuse_matches(refuses: Callable[[Any, Any], bool]) -> AbstractContextManager[None]:
    """While entered, the pattern matcher of every pass skips a match where `refuses(entry, match)`."""

    def make(apply: Any) -> Any:
        def apply_refusing(self: Any, graph: Any) -> Any:
            entries = {id(entry): entry for listed in self.patterns.values() for entry in listed}
            checks = [(entry, entry.extra_check) for entry in entries.values()]
            for entry, check in checks:
                entry.extra_check = lambda match, entry=entry, check=check: not refuses(entry, match) and check(match)
            try:
                return apply(self, graph)
            finally:
                for entry, check in checks:
                    entry.extra_check = check

        return apply_refusing

    return wrap("torch._inductor.pattern_matcher", "PatternMatcherPass.apply", make)


def compare_constants(record: Callable[[WrongRewrite], None]) -> AbstractContextManager[None]:
    """While entered, no pattern of attention takes a program with other constants than its own; `record` is called with
    each that would."""

    def refuses(entry: Any, match: Any) -> bool:
        if "sfdp" not in rewrite_name(entry):
            return False
        outputs = {index: node for index, node in enumerate(match.output_nodes()) if node is not None}
        operands = {name: getattr(value, "meta", {}).get("val", value) for name, value in match.kwargs.items()}
        try:
            constants = tuple(find_differences(entry, operands, [*outputs], [*outputs.values()]))
        except Unlike:
            return False
        if constants:
            record(WrongRewrite(rewrite_name(entry), constants=constants))
        return bool(constants)

    return refuse_matches(refuses)


@contextmanager
def limit_steps(argument: str, record: Record) -> Iterator[None]:
    """While entered, "pass 17" takes the first 17 passes and rewrites, and leaves out the others; records those taken.

    Steps are what torch's bisector leaves out: decompositions, passes, lowerings; and rewrites within passes.
    """
    wanted, most = argument.split()
    taken: list[str] = []

    def is_left_out(kind: str, name: Callable[[], str]) -> bool:
        if kind != wanted:
            return False
        if len(taken) < int(most):
            taken.append(name())
            return False
        return True

    def is_disabled(_backend: str, subsystem: str, describe: Callable[[], str] = str) -> bool:
        return is_left_out(_KINDS.get(subsystem, ""), lambda: _read_name(describe()))

    with (
        wrap("torch._inductor.compiler_bisector", "CompilerBisector.disable_subsystem", lambda _: is_disabled),
        refuse_matches(lambda entry, _: is_left_out("pass", lambda: rewrite_name(entry))),
    ):
        try:
            yield
        finally:
            record(StepsTaken(len(taken), taken[-1] if taken else ""))


def _read_name(text: str) -> str:
    """The name of a pass, of an operator ("<OpOverload(op='aten.silu', ...)>"), or of a node's operation ("relu_2")."""
    found = re.search(r"op='([\w.]+)'", text)
    return found[1] if found else re.sub(r"_\d+$", "", text)


@contextmanager
def keep_operations_apart() -> Iterator[None]:
    """While entered, every operation is a kernel of its own."""

    def make(run_node: Any) -> Any:
        def run_and_realize(self: Any, node: Any) -> Any:
            result = run_node(self, node)
            # A view of another operation's memory has none.
            if type(getattr(result, "data", None)).__name__ == "StorageBox":
                result.realize()
            return result

        return run_and_realize

    def make_codegen(codegen_node: Any) -> Any:
        def codegen_and_flush(self: Any, node: Any) -> Any:
            result = codegen_node(self, node)
            self.flush()  # C++ loops that follow each other are one function
            return result

        return codegen_and_flush

    with (
        wrap("torch._inductor.scheduler", "Scheduler.can_fuse", lambda _: lambda *_args, **_options: False),
        wrap("torch._inductor.codegen.cpp", "CppScheduling.codegen_node", make_codegen),
        wrap("torch._inductor.graph", "GraphLowering.run_node", make),
    ):
        yield


CONTROLS: dict[str, Callable[[str, Record], AbstractContextManager[Any]]] = {
    "pattern_matcher_off": lambda _, __: patch_config({"pattern_matcher": False}),
    "casts_emulated": lambda _, __: patch_config({"emulate_precision_casts": True}),
    "unpadded": lambda _, __: patch_config({"comprehensive_padding": False}),
    "unvectorized": lambda _, __: patch_config({"cpp.simdlen": 1}),
    "unfused": lambda _, __: keep_operations_apart(),
    "steps": limit_steps,
}
"""All controls by name: each makes what surrounds compiling and running."""


def apply_controls(subject: Subject, controls: Iterable[Control], record: Record) -> Subject:
    """`subject` under these controls; `record` is called with what they observe. Raises `SubjectError`."""
    for control in controls:
        if subject.attention is not None:
            raise SubjectError(f"{subject.name} is an attention function: {control.name} is for compilers")
        enter = functools.partial(CONTROLS[control.name], control.argument, record)
        subject = replace(subject, under=functools.partial(_nest, subject.under, enter))
    return subject


@contextmanager
def _nest(outer: Callable[[], Any], inner: Callable[[], Any]) -> Iterator[None]:
    with outer(), inner():
        yield
