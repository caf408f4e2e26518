"""A failure to show: how its module is compiled and called, and the program that a script has."""

import re
from dataclasses import dataclass

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import RepeatedMask, StateChanged
from fuzz.subjects import INDUCTOR, MEMORY_BUDGET, SubjectSpec, get_spec, is_attention, is_user_function
from generators.program.attention_stub import drop_fills, emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, list_unplain, source
from generators.program.ops import FUNCTIONS
from generators.program.settings import SWITCHES

CASE_FILE = "finding.case.yaml"

WITHOUT_NUMBERS = frozenset(verdict for verdict in Verdict if verdict.is_logged)
"""Failures that show in a log, not in numbers."""

ENABLE = "torch._dynamo.compiled_autograd._enable"
"""Compiled autograd, with a compiler, as PyTorch's own tests enter it."""

_AUTOMATIC = "[[torch.export.Dim.AUTO] * x.dim() for x in inputs()]"
"""The dynamic shapes of torch.export, by which it finds out which sizes are symbolic."""
_PLAIN_SWITCHES = {"compiled_as": "twice", "compiled_autograd": True}
"""Switches that a script has statements for."""
_STATE = re.compile(r"torch(\.\w+)+")


@dataclass(frozen=True, slots=True)
class FailingRun:
    """A failure to show."""

    case: Case
    result: SubjectResult
    title: str = ""
    device: str = "cpu"
    dynamic: bool = False  # compile with symbolic sizes; dynamic cases always do
    own_random: bool = False  # Inductor draws its own random numbers

    @property
    def spec(self) -> SubjectSpec:
        """The row of the subject."""
        return get_spec(self.result.subject)

    @property
    def who(self) -> str:
        """Whose result is wrong: `kernel`, `eager` or `compiled`."""
        is_of_eager = self.result.verdict is Verdict.EAGER_SUSPECT
        return "eager" if is_of_eager else "kernel" if is_kernel(self.result) else "compiled"

    @property
    def is_compiled(self) -> bool:
        """Whether the result is of a compiled module."""
        return self.who == "compiled" and bool(self.spec.backend)

    @property
    def options(self) -> dict[str, object]:
        """The options of torch.compile."""
        is_set = self.who == "compiled" and self.spec.options
        return {name: value for name, value in self.case.settings if name not in SWITCHES and is_set}

    @property
    def is_sequence(self) -> bool:
        """Whether the program has `calls`. Its compiler decides at each call which sizes and numbers are symbolic."""
        return self.case.is_sequence

    @property
    def compiles_backward(self) -> bool:
        """Whether compiled autograd compiles the backward pass."""
        return self.who == "compiled" and self.spec.options and "compiled_autograd" in dict(self.case.settings)

    @property
    def replay(self) -> str:
        """The command that gives the full verdict."""
        return f"python -m fuzz.replay {CASE_FILE} --subject {self.result.subject}"

    def list_config(self) -> dict[str, dict[str, object]]:
        """Values of torch's configuration, by the module of torch that has them."""
        values = dict(self.options)
        if not is_of_config(self.result):
            values = {"fallback_random": True} if is_random(self.case) and not self.own_random else {}
        budget: dict[str, object] = {"activation_memory_budget": MEMORY_BUDGET} if self.spec.recomputes else {}
        found = {"torch._functorch.config": budget, "torch._inductor.config": values}
        return {module: given for module, given in found.items() if given and self.who == "compiled"}

    def list_compiling(self, given: str) -> list[str]:
        """Statements, and last the expression of what runs in place of `module`. `given`: the expression of inputs."""
        is_dynamic = self.dynamic or self.case.dynamic
        if not self.is_compiled:
            return ["module"]
        if self.spec.is_foreign:
            return [f"compile_module(module, {given}{', dynamic=True' * is_dynamic})"]
        if not self.spec.is_exported:
            is_cheap = self.spec.sharded and self.spec.backend != INDUCTOR
            settings = {"backend": self.spec.backend} if is_cheap else self.settings
            sizes = [f"dynamic={is_dynamic}"] * (self.dynamic or not self.is_sequence)
            words = ["module", *sizes, *(f"{name}={value!r}" for name, value in settings.items())]
            compiled = f"torch.compile({', '.join(words)})"
            is_twice = dict(self.case.settings).get("compiled_as") == "twice" and self.spec.options
            return [compiled.replace("(module,", f"({compiled},") if is_twice else compiled]
        shapes = _AUTOMATIC if is_dynamic else "None"
        program = f"program = torch.export.export(module, tuple({given}), dynamic_shapes={shapes})"
        if self.spec.backend == "export":
            return [program, "program.module()"]
        package = "torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))"
        if not any(item.is_buffer for item in self.case.inputs):
            return [program, package]
        # A package copies its constants, and writes to the copies would not show.
        load = "package.load_constants(dict(module.named_buffers()), check_full_update=False, user_managed=True)"
        return [program, f"package = {package}", load, "package"]

    @property
    def settings(self) -> dict[str, object]:
        """The keywords of torch.compile that only the backend Inductor accepts."""
        own = dict(self.spec.keywords)
        return {} if is_of_config(self.result) else {"options": self.options} if self.options else own


def is_kernel(result: SubjectResult) -> bool:
    """Whether a result accuses an attention function."""
    return is_attention(result.subject) and result.verdict is not Verdict.EAGER_SUSPECT


def is_of_config(result: SubjectResult) -> bool:
    """Whether settings are set in torch._inductor.config, as in workers: torch.compile undoes its options."""
    return result.verdict is Verdict.STATE_CHANGED


def needs_worker(bug: FailingRun) -> bool:
    """Whether no plain script shows the bug.

    - The worker makes packed or paged calls from the case's dense call.
    - Memory is limited, guarded or filled.
    - The masks of several runs are counted.
    - The state that changed is not an attribute of torch.
    - The call that is wrong stands in no text: a rewrite makes it.
    """
    result, failure = bug.result, bug.result.failure
    states = [change.state for change in failure.changes] if isinstance(failure, StateChanged) else []
    is_packed = failure is not None and bool(failure.sequences)
    is_counted = isinstance(failure, RepeatedMask)
    is_of_memory = result.verdict in (Verdict.OUT_OF_MEMORY, Verdict.OUT_OF_BOUNDS) or bool(result.writes)
    switches = {name: value for name, value in bug.case.settings if name in SWITCHES} if bug.spec.options else {}
    is_switched = bug.who == "compiled" and not switches.items() <= _PLAIN_SWITCHES.items()
    is_made = bool(bug.spec.sdpa) and not bug.case.contracts
    return is_packed or is_counted or is_of_memory or is_switched or is_made or not all(map(_STATE.fullmatch, states))


def find_function(bug: FailingRun) -> str:
    """The accused attention function, "package.module:function"; "" if none is accused or it has no import."""
    subject = bug.result.subject if bug.who == "kernel" else "eager"
    return subject if is_user_function(subject) else get_spec(subject).function


def spell_plain(case: Case) -> str:
    """`Plain`, the module whose regions are Python calls and loops; "" if its text is the module's. Float64 runs it."""
    if not list_unplain(case):
        return ""
    text, shown = source(case, plain=True), source(case)
    start = text.index("    def forward(", text.index("class Module("))
    if text[start:] in shown:
        return ""
    module = "class Plain(Module):\n" + text[start : text.index("\n\n\ndef inputs(", start)].rstrip()
    called = (body for name, body in FUNCTIONS.items() if f"{name}(" in module and f"def {name}(" not in shown)
    return "\n\n\n".join([*(body.strip() for body in called), module])


def spell_kernel(bug: FailingRun) -> str:
    """`WithKernel`, the module that calls the attention function; "" if none is accused. -inf replaces finite fills."""
    backend, text = bug.spec.sdpa, emit_attention_stub(bug.case, as_sdpa=bool(bug.spec.sdpa))
    if bug.who != "kernel" or text is None:
        return ""
    start = text.index("    def forward(")
    forward = drop_fills(text[start : text.index("\n\n\ndef inputs()", start)]).rstrip()
    context = [f"    @sdpa_kernel(SDPBackend.{backend})"] * bool(backend)
    return "\n".join(["class WithKernel(Module):", *context, forward])
