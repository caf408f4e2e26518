"""Code that shows a failure: repro.py, and the short run in a report. Both need torch alone, or torch and the attention
function."""

import json
import re
from dataclasses import dataclass

from fuzz.error_location import find_name
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, StateChanged, Value
from fuzz.subjects import MEMORY_BUDGET, SubjectSpec, get_spec, is_user_function
from generators.program.attention_stub import drop_fills, emit_attention_stub, emit_call
from generators.program.case import Case
from generators.program.emit import is_random, source
from generators.program.settings import SWITCHES
from generators.program.state import is_written
from generators.program.type_check import low_precision, types_of
from generators.program.values import LOW_PRECISION, category
from triage.attribution.ablation import is_attention
from triage.rendering import render

CASE_FILE = "finding.case.yaml"
COMPARISON = "torch.testing.assert_close"
CANT_RUN = 125
"""The exit code of a script that can't tell, which `git bisect run` skips."""

FACTOR, FACTOR_LOW_PRECISION = 10, 4
"""An error may be this many times eager's. Measured: over three findings of each defect in benchmarks/defects.py all
but two exceed it, and none of 80 cases of the bundled kernels does. In low precision eager rounds at every step and is
itself far off, so less room is needed."""

UNITS = 8
"""Units in the last place of the largest magnitude that are no error: eager may be exact by luck."""

FAR, FAR_LOW_PRECISION = 0.0005, 0.05
"""Eager off by this share of the largest magnitude is wrong: `suspicious_share` in fuzz/check/oracle/constants.py."""

ENDS_PROCESS = frozenset({Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY, Verdict.DEVICE_ERROR})
WITHOUT_NUMBERS = ENDS_PROCESS | {Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT}
"""Failures that a log shows, not numbers."""

_KINDS = dict.fromkeys(WITHOUT_NUMBERS, "error") | {
    Verdict.WORKER_DIED: "dies",
    Verdict.METADATA: "form",
    Verdict.NONDETERMINISTIC: "repeats",
    Verdict.STATE_CHANGED: "state",
}
"""How a script tells the bug; all others compare values."""
_UNCOMPARED = (Verdict.NONDETERMINISTIC, Verdict.OUT_OF_BOUNDS, Verdict.EAGER_SUSPECT)
_OF_MEMORY = frozenset({Verdict.OUT_OF_BOUNDS, Verdict.NONFINITE, Verdict.NONDETERMINISTIC, Verdict.WORKER_DIED})
_CAST = re.compile(r"torch\.(float|double|half|bfloat)|\.(float|half|bfloat16|double)\(\)|dtype=")
_STATE = re.compile(r"torch(\.\w+)+")
"""State of the process that an expression reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A failure to show."""

    case: Case
    result: SubjectResult
    title: str = ""
    device: str = "cpu"
    dynamic: bool = False  # compile with symbolic sizes, as dynamic cases always do
    own_random: bool = False  # Inductor draws its own random numbers

    @property
    def spec(self) -> SubjectSpec:
        """The row of the subject."""
        return get_spec(self.result.subject)

    @property
    def who(self) -> str:
        """Whose result is wrong: that of `kernel`, `eager` or `compiled`."""
        is_of_eager = self.result.verdict is Verdict.EAGER_SUSPECT
        return "eager" if is_of_eager else "kernel" if is_kernel(self.result) else "compiled"

    @property
    def options(self) -> dict[str, object]:
        """The options of torch.compile."""
        is_set = self.who == "compiled" and self.spec.options
        return {name: value for name, value in self.case.settings if name not in SWITCHES and is_set}

    @property
    def replay(self) -> str:
        """The command that gives the full verdict."""
        return f"python -m fuzz.replay {CASE_FILE} --subject {self.result.subject}"

    def spell_call(self, module: str, backend: str = "") -> str:
        """The expression for the compiled or exported module. `backend`: an expression, "" for torch's default."""
        dynamic = self.dynamic or self.case.dynamic
        if self.spec.is_exported:
            args = "inputs()" if self.device == "cpu" else f"{self.move()} for x in inputs()"
            sizes = ", dynamic_shapes=[[torch.export.Dim.AUTO] * x.dim() for x in inputs()]" if dynamic else ""
            program = f"torch.export.export({module}, tuple({args}){sizes})"
            package = f"torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package({program}))"
            return package if self.spec.backend == "aot_inductor" else f"{program}.module()"
        settings = {"options": self.options} if self.options else {"mode": self.spec.mode} if self.spec.mode else {}
        settings = {} if is_of_config(self.result) else settings
        words = [f"{name}={value!r}" for name, value in settings.items()]
        if backend and settings:
            words = [f"**({settings} if {backend} == 'inductor' else {{}})"]  # no other backend takes them
        words = [f"dynamic={dynamic}"] * (dynamic or backend != "") + words
        return f"torch.compile({', '.join([module, *([f'backend={backend}'] if backend else []), *words])})"

    def list_setup(self) -> list[str]:
        """Lines that stand before the first call: imports and values of torch's configuration."""
        if self.who != "compiled":
            return []
        config, budget = "torch._inductor.config", "torch._functorch.config.activation_memory_budget"
        lines = [f"{config}.fallback_random = True"] * (is_random(self.case) and not self.own_random)
        if is_of_config(self.result):
            lines = [f"{config}.{name} = {value!r}" for name, value in self.options.items()]
        lines = [f"import {config}", *lines] if lines else []
        recomputing = ["import torch._functorch.config", f"{budget} = {MEMORY_BUDGET}"]
        return lines + recomputing * self.spec.recomputes

    @property
    def to_device(self) -> str:
        """The call that moves a module or a tensor to the device; "" for the CPU."""
        return "" if self.device == "cpu" else f'.to("{self.device}")'

    def move(self) -> str:
        """The expression for `x`, an input, on the device."""
        if self.to_device and any(item.layout in ("padded", "every_second") for item in self.case.inputs):
            # .to() would leave the gaps behind.
            return f'torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="{self.device}").copy_(x)'
        return f"x{self.to_device}"


def is_kernel(result: SubjectResult) -> bool:
    """Whether a result accuses an attention function."""
    return is_attention(result.subject) and result.verdict is not Verdict.EAGER_SUSPECT


def is_of_config(result: SubjectResult) -> bool:
    """Whether settings are told as values of torch._inductor.config, as workers set them: options are undone."""
    return result.verdict is Verdict.STATE_CHANGED


def place_of(subject: str) -> str:
    """Where a script that imports the function has to be run; "" where torch is enough."""
    if is_user_function(subject):
        return f"where {subject.partition(':')[0]} can be imported"
    return "in a checkout of attnfuzz" if get_spec(subject).function else ""


def write_script(bug: Bug) -> str:
    """The script, which exits as its docstring says; "" where no plain run shows the bug.

    A plain run makes the case's own call alone, without a limit of memory, and reads no state of the process but what
    an expression gives.
    """
    case, result, failure, spec, who = bug.case, bug.result, bug.result.failure, bug.spec, bug.who
    verdict, aspect, program = result.verdict, getattr(failure, "aspect", ""), source(case).strip()
    states = [one.state for one in failure.changes] if isinstance(failure, StateChanged) else []
    is_packed = failure is not None and failure.sequences
    if is_packed or verdict is Verdict.OUT_OF_MEMORY or not all(map(_STATE.fullmatch, states)):
        return ""
    kind = "values" if aspect in ("memory", "mutation") else _KINDS.get(verdict, "values")
    function = (result.subject if is_user_function(result.subject) else spec.function) if who == "kernel" else ""
    writes = (*result.writes, *getattr(failure, "writes", ()))
    mutates = any(write.place == "itself" for write in writes) or aspect == "mutation"
    trains = case.training or any(call.under == "training" for call in case.calls)
    gradients = trains and any(category(types_of(case)[name].dtype) == 2 for name in case.returns)
    owner: Value | None = getattr(failure, "owner", None)
    shared = find_name(case, owner) if owner else ""
    has_gaps = any(item.layout != "contiguous" and not item.parameter for item in case.inputs)
    compares = kind in ("values", "repeats")
    # .to(device) moves gaps and repeats in memory without them.
    keeps_memory = bool(case.calls) or (bug.device != "cpu" and has_gaps)
    moved = f"(double(a) if exact else a){bug.to_device}" if bug.device != "cpu" else "double(a) if exact else a"
    convert = f"convert(a{', exact' * compares})" if keeps_memory else moved if compares else f"a{bug.to_device}"
    contexts = _list_contexts(bug, program, compares=compares)
    coarsest = coarsest_dtype(case)
    backend_is_open = who == "compiled" and not spec.is_exported
    needs = {"os": function or backend_is_open or verdict is Verdict.DEVICE_ERROR, "subprocess": kind == "dies"}
    return render(
        "repro.py.j2",
        title=_quotable(bug.title),
        replay=_quotable(bug.replay),
        imports=sorted({"sys", "traceback", *(name for name, is_needed in needs.items() if is_needed)}),
        imported="from {} import {} as attend".format(*function.split(":")) if function else "",
        place=place_of(result.subject) if who == "kernel" else "",
        source=program,
        forward=forward_of(case, as_sdpa=bool(spec.sdpa)) if who == "kernel" else "",
        setup=bug.list_setup(),
        contexts=contexts,
        casts=any("Float64()" in context for context in contexts),
        exact=", exact" if compares else "",
        convert=convert,
        borders=bool(function) and (verdict in _OF_MEMORY or bool(result.writes)),
        poison=dict(case.settings).get("poison", "") if who == "compiled" and spec.options else "",
        deterministic=who == "compiled" and spec.options and "use_deterministic_algorithms" in dict(case.settings),
        backend_is_open=backend_is_open,
        call=bug.spell_call("module", "BACKEND") if who == "compiled" else "",
        failing={"compiled": "run(Module(), compiled=True)", "kernel": "run(WithKernel())"}.get(who, ""),
        # Constants of a package are copies, whose writes nobody sees.
        loads_buffers=spec.backend == "aot_inductor" and any(item.is_buffer for item in case.inputs),
        is_of_empty_rows=isinstance(failure, EmptyRowsNotZero),
        # Recomputing draws eager's numbers again.
        random=is_random(case) and not spec.recomputes,
        names=json.dumps([item.name for item in case.inputs if not item.parameter]),
        named=gradients or shared or is_written(case) or mutates,
        is_written=is_written(case) or mutates,
        factor=FACTOR_LOW_PRECISION if coarsest in LOW_PRECISION else FACTOR,
        units=UNITS,
        share=FAR_LOW_PRECISION if low_precision(case) else FAR,
        kind=kind,
        who=who,
        verdict=verdict.value,
        device="" if bug.device == "cpu" else bug.device,
        case=case,
        states=states,
        shared=shared,
        gradients=gradients,
        keeps_memory=keeps_memory,
        to_device=bug.to_device,
        coarsest=coarsest,
    )


def _list_contexts(bug: Bug, program: str, *, compares: bool) -> list[str]:
    """The contexts of a call: float64 is computed without fused attention and without casts to lower precision."""
    contexts = []
    if compares and any(op.kind == "sdpa" for op in bug.case.ops):
        contexts.append("sdpa_kernel(SDPBackend.MATH) if exact else nullcontext()")
    if compares and _CAST.search(program.partition("\ndef inputs")[0]):
        contexts.append("Float64() if exact else nullcontext()")
    if bug.who == "kernel" and bug.spec.sdpa:
        backend = f"sdpa_kernel(SDPBackend.{bug.spec.sdpa})"
        contexts.append(f"{backend} if isinstance(module, WithKernel) else nullcontext()")
    return contexts


def forward_of(case: Case, *, as_sdpa: bool = False) -> str:
    """`forward` of the case with calls of `attend`, or of scaled_dot_product_attention, for its attention. Finite fills
    are as good as -inf here."""
    text = emit_attention_stub(case, as_sdpa=as_sdpa) or ""
    start = text.index("    def forward(")
    return drop_fills(text[start : text.index("\n\n\ndef inputs()", start)]).rstrip()


def coarsest_dtype(case: Case) -> str:
    """The least precise floating dtype of a value."""
    found = {value.dtype for value in types_of(case).values()}
    return next((dtype for dtype in (*LOW_PRECISION, "float32") if dtype in found), "float64")


def _quotable(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")


def spell_program(case: Case, subject: str) -> str:
    """The program with calls of the attention function, or of scaled_dot_product_attention."""
    function = subject if is_user_function(subject) else get_spec(subject).function
    module, _, name = (function or "torch.nn.attention:SDPBackend, sdpa_kernel").rpartition(":")
    head, _, rest = emit_call(case, function).strip().partition("\n\n")
    return f"{head}\nfrom {module} import {name}\n\n{rest}"


def spell_run(bug: Bug) -> str:
    """The run that a report shows below the program: it raises, compares with eager or MATH, or prints.

    "" where it takes more than a line to bring an input to the device as it lies in memory.
    """
    case, result, spec, who = bug.case, bug.result, bug.spec, bug.who
    if bug.device != "cpu" and any(item.layout == "offset" for item in case.inputs):
        return ""
    module = f"Module(){bug.to_device}{'' if case.training else '.eval()'}"
    setup, runs = bug.list_setup(), [module]
    if who == "compiled":
        runs.append(bug.spell_call(module))
    if spec.is_exported and not case.training:
        setup.append("torch.set_grad_enabled(False)")
    states = [line.partition(" = ")[0] for line in setup if is_of_config(result) and " = " in line]
    backend = spec.sdpa if who == "kernel" else ""
    is_silent = result.verdict not in WITHOUT_NUMBERS and not states
    owner: Value | None = getattr(result.failure, "owner", None)
    is_plain = len(case.returns) == 1
    writes = is_plain and owner is not None and owner.kind == "input"
    compares = is_silent and result.verdict not in _UNCOMPARED and (len(runs) > 1 or backend != "") and not writes
    value, moved = result.value, bug.move()
    leaf = f"{moved}.requires_grad_() if x.is_floating_point() else {moved}" if case.training else moved
    args, shown = "inputs()" if leaf == "x" else f"[{leaf} for x in inputs()]", _spell(value)
    takes_args = case.training or writes or shown != "out"
    lines = ["torch.manual_seed(0)"] * is_random(case)
    lines += [f"args = {args}", "out = run(*args)"] if takes_args else [f"out = run(*{args})"]
    if case.training and ((value and value.is_gradient) or not is_silent):
        total = "out.square().sum()" if is_plain else "sum(one.square().sum() for one in out if one.requires_grad)"
        lines.append(f"{total}.backward()")
    if owner and writes:
        lines += ["out.zero_()", f"print(args[{owner.name}])"]
    elif is_silent:
        lines.append(f"results.append({shown})" if compares else f"print({shown})")
    loop = f"for run in ({', '.join(runs)}):" if is_silent and len(runs) > 1 else ""
    contexts = ["torch.no_grad()"] * (not case.training and not spec.is_exported)
    if backend:
        loop = f"for backend in (SDPBackend.MATH, SDPBackend.{backend}):" if compares else ""
        contexts.append(f"sdpa_kernel({'backend' if compares else f'SDPBackend.{backend}'})")
    lines = [f"run = {runs[-1]}", *lines] if backend or not loop else lines
    for head in (f"with {', '.join(contexts)}:" if contexts else "", loop):
        lines = [head, *(f"    {line}" for line in lines)] if head else lines
    if compares:
        strides = ", check_stride=True" if getattr(result.failure, "aspect", "") == "strides" else ""
        lines = ["results = []", *lines, f"{COMPARISON}(results[1], results[0]{strides})"]
    return "\n".join([*setup, *lines, *(f"print({state})" for state in states)])


def _spell(value: Value | None) -> str:
    """The expression that holds a value after a run."""
    if value and value.is_gradient:
        return f"[x.grad for x in {'run.parameters()' if value.kind == 'parameter' else 'args'}]"
    written = {"input": "args", "parameter": "[*run.parameters()]", "buffer": "[*run.buffers()]"}
    return written[value.kind] if value and value.is_written else "out"
