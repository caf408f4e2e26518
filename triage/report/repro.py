"""Code that shows a failure: repro.py, and the call in a report. Both need only torch and the attention function."""

import json
import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, RepeatedMask, StateChanged
from fuzz.subjects import INDUCTOR, MEMORY_BUDGET, SubjectSpec, get_spec, is_attention, is_user_function
from generators.program.attention_stub import drop_fills, emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, list_unplain, source
from generators.program.ops.recurrence import FUNCTIONS
from generators.program.settings import SWITCHES
from generators.program.type_check import types_of
from generators.program.values import EPS, LOW_PRECISION
from triage.rendering import render

CASE_FILE = "finding.case.yaml"
CANT_RUN = 125
"""The exit code of a script that can't tell, which `git bisect run` skips."""

FACTOR, FACTOR_LOW_PRECISION = 10, 4
"""An error may be this many times eager's.

Measured on three findings of each defect in benchmarks/defects.py: all but two exceed it. None of 80 cases of the
bundled kernels does. In low precision the factor is smaller, because eager rounds at every step and its error is large.
"""

UNITS = 8
"""Errors up to this many units in the last place of the largest magnitude count as 0, since eager's error may be 0."""

FAR, FAR_LOW_PRECISION = 0.0005, 0.05
"""Eager is wrong from an error of this share of the largest magnitude on: `suspicious_share` of the oracle."""

WITHOUT_NUMBERS = frozenset(verdict for verdict in Verdict if verdict.is_logged)
"""Failures that show in a log, not in numbers."""

AUTOMATIC = "[[torch.export.Dim.AUTO] * x.dim() for x in inputs()]"
"""The dynamic shapes of torch.export, by which it finds out which sizes are symbolic."""

ENABLE = "torch._dynamo.compiled_autograd._enable"
"""Compiled autograd, with a compiler, as PyTorch's own tests enter it."""

_PLAIN_SWITCHES = {"compiled_as": "twice", "compiled_autograd": True}
"""Switches that a script has statements for."""

_RUNTIME = Path(__file__).with_name("repro_runtime.py")
_CHECKS = dict.fromkeys(WITHOUT_NUMBERS, ("raises",)) | {
    Verdict.METADATA: ("describe_forms", "has_other_forms"),
    Verdict.STATE_CHANGED: ("describe_forms", "has_other_forms"),
}
"""The functions of the runtime that show a failure, by verdict. The last returns whether the bug shows."""
_COMPARE = ("Float64", "has_wrong_values")
"""The functions for all other verdicts, and for wrong writes."""
_CONSTANT = re.compile(r"^([A-Z_]+)\b[^=\n]* = .*?((?:  # .*)?)$", re.MULTILINE)
_DEFINED = re.compile(r"\s*(?:def|class) (\w+)")
_STATE = re.compile(r"torch(\.\w+)+")


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
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

    def list_setup(self) -> list[str]:
        """Lines before the first call: imports and values of torch's configuration."""
        config = self.list_config()
        lines = [f"{module}.{name} = {value!r}" for module, given in config.items() for name, value in given.items()]
        return [*[f"import {', '.join(config)}"] * bool(config), *lines]

    def list_preparation(self) -> list[str]:
        """The body of `prepare(module)`."""
        dynamic = self.dynamic or self.case.dynamic
        if self.who != "compiled" or self.spec.is_exported:
            *lines, result = self.list_compiling(str(dynamic), AUTOMATIC if dynamic else "None", "map(move, inputs())")
            return [*lines, f"return {result}"]
        settings = self.spell_settings()
        forget = ["torch._dynamo.reset()"] * self.spec.warm
        switched = f", **({settings} if BACKEND == 'inductor' else {{}})" if settings else ""
        compiled = f"torch.compile(module, backend=BACKEND, dynamic={dynamic}{switched})"
        enable = f"{ENABLE}(lambda graph: torch.compile(graph, backend=BACKEND))"
        enter = [f"module.context = {enable}  # it lasts as long as the module", "module.context.__enter__()"]
        return [*forget, *enter * self.compiles_backward, f"return {self._compile_again(compiled)}"]

    def _compile_again(self, compiled: str) -> str:
        """The expression of a compiled module, which is compiled once more if the case says so."""
        is_twice = dict(self.case.settings).get("compiled_as") == "twice" and self.spec.options
        return compiled.replace("(module,", f"({compiled},") if is_twice else compiled

    def list_compiling(self, dynamic: str, shapes: str, given: str) -> list[str]:
        """Statements, and last the expression of what runs in place of `module`.

        The arguments are expressions: of `dynamic`, of the dynamic shapes of torch.export, and of the inputs.
        """
        if not self.is_compiled:
            return ["module"]
        if not self.spec.is_exported:
            is_cheap = self.spec.sharded and self.spec.backend != INDUCTOR
            settings = {"backend": self.spec.backend} if is_cheap else self.spell_settings()
            words = [f"{name}={value!r}" for name, value in settings.items()]
            return [self._compile_again(f"torch.compile({', '.join(['module', f'dynamic={dynamic}', *words])})")]
        program = f"program = torch.export.export(module, tuple({given}), dynamic_shapes={shapes})"
        if self.spec.backend == "export":
            return [program, "program.module()"]
        package = "torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))"
        if not any(item.is_buffer for item in self.case.inputs):
            return [program, package]
        # A package copies its constants, and writes to the copies would not show.
        load = "package.load_constants(dict(module.named_buffers()), check_full_update=False, user_managed=True)"
        return [program, f"package = {package}", load, "package"]

    def spell_settings(self) -> dict[str, object]:
        """The keywords of torch.compile that only the backend Inductor accepts."""
        own = dict(self.spec.keywords)
        return {} if is_of_config(self.result) else {"options": self.options} if self.options else own


def is_kernel(result: SubjectResult) -> bool:
    """Whether a result accuses an attention function."""
    return is_attention(result.subject) and result.verdict is not Verdict.EAGER_SUSPECT


def find_error(result: SubjectResult) -> str:
    """The name of the exception by which a script shows a failure: it raises where a result is wrong."""
    return getattr(result.failure, "error", "") if result.verdict in WITHOUT_NUMBERS else "AssertionError"


def is_of_config(result: SubjectResult) -> bool:
    """Whether settings are set in torch._inductor.config, as in workers: torch.compile undoes its options."""
    return result.verdict is Verdict.STATE_CHANGED


def needs_worker(bug: ScriptedFailure) -> bool:
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
    is_of_memory = result.verdict in (Verdict.OUT_OF_MEMORY, Verdict.OUT_OF_BOUNDS)
    switches = {name: value for name, value in bug.case.settings if name in SWITCHES} if bug.spec.options else {}
    is_switched = bug.who == "compiled" and not switches.items() <= _PLAIN_SWITCHES.items()
    is_made = bool(bug.spec.sdpa) and not bug.case.contracts
    return is_packed or is_counted or is_of_memory or is_switched or is_made or not all(map(_STATE.fullmatch, states))


def write_script(bug: ScriptedFailure) -> str:
    """The text of repro.py; "" if no plain script shows the bug."""
    if needs_worker(bug):
        return ""
    case, result, spec, who = bug.case, bug.result, bug.spec, bug.who
    is_of_write = getattr(result.failure, "aspect", "") == "mutation"
    checks = _COMPARE if is_of_write else _CHECKS.get(result.verdict, _COMPARE)
    function, has_backend = find_function(bug), who == "compiled" and not spec.is_exported
    # Triton reads its variable when a kernel is defined. With that of CUDA, tracebacks lead to the launch.
    variables = ["TRITON_INTERPRET"] * (bool(function) and bug.device == "cpu")
    variables += ["CUDA_LAUNCH_BLOCKING"] * (result.verdict is Verdict.DEVICE_ERROR)
    imported = ["sys.path.insert(0, os.getcwd())", spell_import(bug)] if function else []
    setup = bug.list_setup()
    if function and result.verdict in (Verdict.NONFINITE, Verdict.NONDETERMINISTIC):
        setup.append("torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN")
    empty = 'os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # the programs below share caches'
    setup += ["import tempfile", empty] * spec.warm
    setup += ['BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")'] * has_backend
    setup += ["Accused = WithKernel" if who == "kernel" else "Accused = Module"]
    setup += ["Plain = Module"] * (checks == _COMPARE and not list_unplain(case))
    setup += ["calls = lambda module: [inputs()]"] * ("\ndef calls(" not in source(case))
    # The first run fills caches.
    first = ["run_earlier()"] * len(case.before[:1]) + ["not run(Accused, prepare)"] * spec.warm
    return render(
        "repro.py.j2",
        title=bug.title.replace("\\", "/").replace('"', "'"),
        replay=bug.replay,
        has_backend=has_backend,
        place=function.partition(":")[0],
        head=[f'os.environ.setdefault("{name}", "1")' for name in variables],
        imported=imported,
        program=spell_program(bug),
        setup=setup,
        preparation=bug.list_preparation(),
        runtime=read_runtime(
            ("move", "run", *["run_earlier"] * len(case.before[:1]), *checks, "main"), list_constants(bug)
        ),
        check=f"lambda: {' or '.join([*first, f'{checks[-1]}()'])}" if first else checks[-1],
    )


def list_constants(bug: ScriptedFailure) -> dict[str, str]:
    """Expressions for the constants of the runtime."""
    case, result, failure = bug.case, bug.result, bug.result.failure
    factor, share, coarsest = find_tolerance(bug)
    of_eager = bug.who == "eager"
    states = [change.state for change in failure.changes] if isinstance(failure, StateChanged) else []
    return {
        "NAMES": json.dumps([item.name for item in case.inputs if not item.parameter]),
        "TRAINING": str(case.training),
        "DEVICE": f'"{bug.device}"',
        "ACCUSED": "BACKEND" if bug.who == "compiled" and not bug.spec.is_exported else f'"{bug.who}"',
        "BASELINE": '"float64"' if of_eager else '"eager"',
        "DTYPE": f"torch.{coarsest}",
        "FACTOR": str(factor),
        "SHARE": str(share) if of_eager else f"{UNITS} * torch.finfo(DTYPE).eps",
        "EMPTY_ROWS": "0.0" if isinstance(failure, EmptyRowsNotZero) else "None",
        # A subject that recomputes draws the same random numbers as eager.
        "IS_RANDOM": str(is_random(case) and not bug.spec.recomputes),
        "RUNS": "5" if result.verdict is Verdict.NONDETERMINISTIC else "0",
        "STATE": json.dumps(states),
        "EARLIER": f"[{', '.join(f'(earlier_{n}, {2 * one.times})' for n, one in enumerate(case.before, 1))}]",
    }


def find_tolerance(bug: ScriptedFailure) -> tuple[int, float, str]:
    """The multiple of eager's error, and the share of the largest magnitude, that a result may be off from float64; and
    the least precise dtype of the program, which decides both."""
    found = {value.dtype for value in types_of(bug.case).values()}
    coarsest = next((dtype for dtype in (*LOW_PRECISION, "float32") if dtype in found), "float64")
    factor, far = (FACTOR_LOW_PRECISION, FAR_LOW_PRECISION) if coarsest in LOW_PRECISION else (FACTOR, FAR)
    return (0, far, coarsest) if bug.who == "eager" else (factor, UNITS * EPS[coarsest], coarsest)


def read_runtime(names: tuple[str, ...], constants: dict[str, str]) -> str:
    """The source of these functions, after the constants that they read and the comments on these."""
    text = _RUNTIME.read_text(encoding="utf-8")
    blocks = {found[1]: block.strip() for block in text.split("\n\n\n") if (found := _DEFINED.match(block))}
    functions = [blocks[name] for name in names]
    words = re.findall(r"\w+", "\n".join(functions))
    lines = [f"{name} = {constants[name]}{comment}" for name, comment in _CONSTANT.findall(text) if name in words]
    return "\n\n\n".join(["\n".join(lines), *functions])


def find_function(bug: ScriptedFailure) -> str:
    """The accused attention function, "package.module:function"; "" if none is accused or it has no import."""
    subject = bug.result.subject if bug.who == "kernel" else "eager"
    return subject if is_user_function(subject) else get_spec(subject).function


def spell_import(bug: ScriptedFailure) -> str:
    """The import that `WithKernel` needs, or ""."""
    module, _, name = find_function(bug).partition(":")
    of_torch = "from torch.nn.attention import SDPBackend, sdpa_kernel" if bug.who == "kernel" else ""
    alias = "" if name == "attend" else " as attend"
    return f"from {module} import {name}{alias}" if module else of_torch


def spell_program(bug: ScriptedFailure, imports: str = "") -> str:
    """The program, and `WithKernel` if an attention function is accused; before it, a function for each earlier case
    that gives the names by which `run` knows a program. A worker calls a subject twice, so the script does too."""
    texts = []
    for number, earlier in enumerate(bug.case.before, 1):
        other = replace(bug, case=earlier.case)
        calls = "" if earlier.case.calls else "\ncalls = lambda module: [inputs()]"
        accused, constants = "WithKernel" if spell_kernel(other) else "Module", list_constants(other)
        names = f'"NAMES": {constants["NAMES"]}, "TRAINING": {constants["TRAINING"]}'
        ending = f'return {{"Accused": {accused}, "calls": calls, {names}}}'
        body = "\n".join(filter(None, [spell_program(other), calls, ending])).replace("\n\n\n", "\n\n")
        texts.append(f"def earlier_{number}():\n{textwrap.indent(body, '    ')}")
    return "\n\n\n".join(
        filter(None, [*texts, source(bug.case).strip(), imports, spell_kernel(bug), spell_plain(bug.case)])
    )


def spell_plain(case: Case) -> str:
    """`Plain`, the module whose regions are Python calls and loops; "" if it is the module. Float64 runs it."""
    if not list_unplain(case):
        return ""
    text, shown = source(case, plain=True), source(case)
    start = text.index("    def forward(")
    module = "class Plain(Module):\n" + text[start : text.index("\n\n\ndef inputs(", start)].rstrip()
    called = (body for name, body in FUNCTIONS.items() if f"{name}(" in module and f"def {name}(" not in shown)
    return "\n\n\n".join([*(body.strip() for body in called), module])


def spell_kernel(bug: ScriptedFailure) -> str:
    """`WithKernel`, the module that calls the attention function; "" if none is accused. -inf replaces finite fills."""
    backend, text = bug.spec.sdpa, emit_attention_stub(bug.case, as_sdpa=bool(bug.spec.sdpa))
    if bug.who != "kernel" or text is None:
        return ""
    start = text.index("    def forward(")
    forward = drop_fills(text[start : text.index("\n\n\ndef inputs()", start)]).rstrip()
    context = [f"    @sdpa_kernel(SDPBackend.{backend})"] * bool(backend)
    return "\n".join(["class WithKernel(Module):", *context, forward])
