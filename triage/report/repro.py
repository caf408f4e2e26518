"""repro.py: a script that shows a failure with torch alone, or with torch and the attention function."""

import json
import re
from dataclasses import dataclass

from fuzz.error_location import find_name
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import EmptyRowsNotZero, StateChanged
from fuzz.subjects import MEMORY_BUDGET, get_spec, is_user_function
from generators.program.attention_stub import drop_fills, emit_attention_stub
from generators.program.case import Case
from generators.program.dtypes import LOW_PRECISION, category
from generators.program.emit import is_random, source
from generators.program.memory import is_written
from generators.program.settings import SWITCHES
from generators.program.type_check import low_precision, types_of
from triage.rendering import render

CANT_RUN = 125
"""The exit code of a script that can't run where it is, which `git bisect run` skips."""

FACTOR, FACTOR_LOW_PRECISION = 10, 4
"""A kernel's error may be this many times eager's. Measured: over three findings of each defect in
benchmarks/defects.py all but two exceed it, and none of 80 cases of the bundled kernels does. In low precision eager
rounds at every step and is itself far off, so less room is needed."""

UNITS = 8
"""Units in the last place of the largest magnitude that are no error: eager may be exact by luck."""

FAR, FAR_LOW_PRECISION = 0.0005, 0.05
"""Eager off by this share of a row's size is wrong: `suspicious_share` in fuzz/check/oracle/constants.py."""

ENDS_PROCESS = frozenset({Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY, Verdict.DEVICE_ERROR})
WITHOUT_NUMBERS = ENDS_PROCESS | {Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT}
"""What fails in these ways prints no numbers but a log."""

_IMPORTS = {
    Verdict.COMPILE_ERROR: {"traceback"},
    Verdict.RUNTIME_ERROR: {"traceback"},
    Verdict.WORKER_DIED: {"subprocess"},
    Verdict.DEVICE_ERROR: {"os", "traceback"},
}
_OF_MEMORY = frozenset({Verdict.OUT_OF_BOUNDS, Verdict.NONFINITE, Verdict.NONDETERMINISTIC, Verdict.WORKER_DIED})
_CAST = re.compile(r"torch\.(float|double|half|bfloat)|\.(float|half|bfloat16|double)\(\)|dtype=")
_STATE = re.compile(r"torch(\.\w+)+")
"""State of the process that is told as an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """What a script shows. `dynamic`: compile with symbolic sizes, as dynamic cases always do; `own_random`: Inductor
    draws its own random numbers."""

    case: Case
    result: SubjectResult
    title: str
    device: str = "cpu"
    dynamic: bool = False
    own_random: bool = False


def is_kernel(result: SubjectResult) -> bool:
    """Whether a result accuses an attention function."""
    return is_attention(result.subject) and result.verdict is not Verdict.EAGER_SUSPECT


def is_attention(subject: str) -> bool:
    """Whether the subject is an attention function."""
    return is_user_function(subject) or get_spec(subject).is_attention


def write_script(bug: Bug) -> str:
    """The script that needs torch alone, or torch and the kernel; "" where a plain run can't show the bug: it makes the
    case's own call alone, without a limit of memory, and reads no state of the process but what an expression gives."""
    failure = bug.result.failure
    states = [one.state for one in failure.changes] if isinstance(failure, StateChanged) else []
    is_packed = failure is not None and failure.sequences
    if is_packed or bug.result.verdict is Verdict.OUT_OF_MEMORY or not all(map(_STATE.fullmatch, states)):
        return ""
    case, verdict, subject = bug.case, bug.result.verdict, bug.result.subject
    spec = get_spec(subject)
    program = source(case).strip()
    who = "kernel" if is_kernel(bug.result) else "eager" if verdict is Verdict.EAGER_SUSPECT else "compiled"
    switches = dict(case.settings) if who == "compiled" and spec.options else {}
    options = {name: switches.pop(name) for name in [*switches] if name not in SWITCHES}
    module, _, function = (subject if is_user_function(subject) else spec.function).partition(":")
    compiles = who == "compiled" or bool(is_kernel(bug.result) and not is_user_function(subject) and spec.backend)
    writes = (*bug.result.writes, *getattr(failure, "writes", ()))
    mutates = any(write.place == "itself" for write in writes) or getattr(failure, "aspect", "") == "mutation"
    differentiates = case.training or any(call.under == "training" for call in case.calls)
    takes_backend = who == "compiled" and not spec.is_exported
    coarsest = coarsest_dtype(case)
    return render(
        "repro.py.j2",
        title=_quotable(bug.title),
        imports=sorted({"sys"} | ({"os"} if module or takes_backend else set()) | _IMPORTS.get(verdict, set())),
        source=program,
        module=module,
        function=function,
        place=place_of(subject) if is_kernel(bug.result) else "",
        interpreted=bug.device == "cpu",
        sdpa_backend=spec.sdpa if is_kernel(bug.result) else "",
        forward=forward_of(case, as_sdpa=bool(spec.sdpa)) if is_kernel(bug.result) else "",
        who=who,
        sdpa=any(op.kind == "sdpa" for op in case.ops),
        casts=bool(_CAST.search(program.partition("\ndef inputs")[0])),
        borders=bool(module) and not compiles and (verdict in _OF_MEMORY or bool(bug.result.writes)),
        compiles=compiles,
        subject=_quotable(subject),
        bug=bug,
        case=case,
        verdict=str(verdict.value),
        is_of_empty_rows=isinstance(failure, EmptyRowsNotZero),
        states=states,
        options=options,
        shared=find_name(case, owner) if (owner := getattr(failure, "owner", None)) else "",
        gradients=differentiates and any(category(types_of(case)[name].dtype) == 2 for name in case.returns),
        dynamic=bug.dynamic or case.dynamic,
        exported=spec.backend if spec.is_exported else "",
        settings={} if states else {"options": options} if options else {"mode": spec.mode} if spec.mode else {},
        switches=switches,
        # What is computed again draws the numbers that it drew at first, which are eager's.
        random=is_random(case) and not spec.recomputes,
        memory_budget=MEMORY_BUDGET if spec.recomputes else 0,
        names=json.dumps([item.name for item in case.inputs if not item.parameter]),
        # .to(device) moves what has gaps or repeats in memory without them.
        keeps_memory=bool(case.calls)
        or (bug.device != "cpu" and any(i.layout != "contiguous" and not i.parameter for i in case.inputs)),
        is_written=is_written(case) or mutates,
        to_device="" if bug.device == "cpu" else f'.to("{bug.device}")',
        coarsest=coarsest,
        factor=FACTOR_LOW_PRECISION if coarsest in LOW_PRECISION else FACTOR,
        units=UNITS,
        share=FAR_LOW_PRECISION if low_precision(case) else FAR,
    )


def place_of(subject: str) -> str:
    """Where a script that imports the function has to be run; "" where torch is enough."""
    if is_user_function(subject):
        return f"where {subject.partition(':')[0]} can be imported"
    return "in a checkout of attnfuzz" if get_spec(subject).function else ""


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
