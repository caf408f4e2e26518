"""repro.py about an attention function: the case, the case with a call of the function, and a comparison.

It needs torch and the function alone. What such a run can't show takes a worker's memory, and `replaying` gives the
script that asks for one.
"""

import json
import re
import textwrap
from collections.abc import Iterator

from corpus.entry import Entry, Expectation, dumps
from fuzz.catalogue import is_named
from fuzz.protocol import SubjectResult, Verdict
from generators.case import Case
from generators.dtypes import LOW_PRECISION
from generators.emit import is_random, source
from generators.program import types_of
from generators.stand_in import stand_in
from triage.page import render
from triage.reproducer import DEATHS, ERRORS, IMPORTS, MAX_LINES, differentiable

FACTOR, FACTOR_LOW_PRECISION = 10, 4
"""A kernel may be this often as far from float64 as eager at its worst. Measured: over three findings of each
defect in benchmarks/defects.py all but two exceed it, and none of 80 cases of the bundled kernels does. In low precision
eager that rounds at every step is itself far off, so that less room is needed."""

UNITS = 8
"""Units in the last place of the largest magnitude that are nothing: eager may be exact by luck."""

MODULES = {"triton": "kernels.attention:attention", "triton_compiled": "kernels.attention:attention"}
_SDPA = {
    "sdpa_math": "MATH",
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_cudnn": "CUDNN_ATTENTION",
}
_CAST = re.compile(r"torch\.(float|double|half|bfloat)|\.(float|half|bfloat16|double)\(\)|dtype=")
_FILL = re.compile(r", fill=[^,)]+")
_BY_MEMORY = frozenset({Verdict.OUT_OF_BOUNDS, Verdict.NONFINITE, Verdict.NONDETERMINISTIC, Verdict.WORKER_DIED})


def texts(
    case: Case, subject: str, result: SubjectResult, title: str, *, device: str, seconds: float, memory_mib: int
) -> Iterator[str]:
    """Texts of repro.py for a subject that gave `result`, the best one first: one that runs the function as it is (not
    where it is known to write beside its buffers), one that puts borders around what it allocates, and one that asks a
    worker."""
    fenced = result.verdict in _BY_MEMORY or "wrote " in result.message
    fenceable = (is_named(subject) or subject == "triton") and result.verdict not in ERRORS | {Verdict.TIMEOUT, Verdict.METADATA}
    for borders in (False, True):
        if fenceable if borders else not (fenced and fenceable):
            yield _running(case, subject, result, title, device, seconds, memory_mib, borders=borders)
    yield replaying(case, subject, title, device)


def _running(
    case: Case, subject: str, result: SubjectResult, title: str, device: str, seconds: float, memory_mib: int, *,
    borders: bool,
) -> str:
    verdict, program = result.verdict, source(case).strip()
    module, _, function = (subject if is_named(subject) else MODULES.get(subject, "")).partition(":")
    random, gradients = is_random(case), case.training and differentiable(case)
    backend = _SDPA.get(subject, "")
    sdpa = any(op.kind == "sdpa" for op in case.ops)
    casts = bool(_CAST.search(program.partition("\ndef inputs")[0]))
    coarsest = coarsest_dtype(case)
    factor = FACTOR_LOW_PRECISION if coarsest in LOW_PRECISION else FACTOR
    names = [item.name for item in case.inputs if not item.parameter]
    whole = render(
        "kernel_repro.py.j2",
        title=_plain(title),
        about=_about(subject, module, factor, coarsest, random=random, gradients=gradients, borders=borders),
        imports=sorted({"sys"} | ({"os"} if not backend else set()) | IMPORTS.get(verdict, set())),
        nulls=sdpa or casts,
        source=program,
        module=module,
        function=function,
        sdpa_backend=backend,
        forward=forward_of(case),
        sdpa=sdpa,
        casts=casts,
        borders=borders,
        compiled=subject == "triton_compiled",
        dynamic=case.dynamic,
        device=device,
        to_device="" if device == "cpu" else f'.to("{device}")',
        arguments="inputs()" if device == "cpu" else f'[a.to("{device}") for a in inputs()]',
        training=case.training,
        gradients=gradients,
        random=random,
        names=json.dumps(names),
        parameters=any(item.parameter for item in case.inputs),
        inputs_kept=" itself" in result.message,
        coarsest=coarsest,
        factor=factor,
        units=UNITS,
        raises=verdict in ERRORS,
        misshapen=verdict is Verdict.METADATA,
        flickers=verdict is Verdict.NONDETERMINISTIC,
        hangs=verdict is Verdict.TIMEOUT,
        hungry=verdict is Verdict.OUT_OF_MEMORY,
        dies=verdict in DEATHS,
        seconds=round(seconds),
        memory_mib=memory_mib,
    )
    if whole.count("\n") < MAX_LINES:
        return whole
    return re.sub(r"\n\n\n+", "\n\n", whole)


def replaying(case: Case, subject: str, title: str, device: str) -> str:
    """The script that runs the case in a worker."""
    entry = Entry(case, expect=Expectation("pass", subject=subject, device=device))
    return render(
        "kernel_replay.py.j2", title=_plain(title), name=_plain(subject), subject=_plain(subject), device=device,
        case=dumps(entry).strip(),
    )


def forward_of(case: Case) -> str:
    """`forward` of the case's stand-in, which calls `attend`. A finite fill was tried: it is as good as -inf here."""
    text = stand_in(case) or ""
    start = text.index("    def forward(")
    return _FILL.sub("", text[start : text.index("\n\n\ndef inputs()", start)]).rstrip()


def coarsest_dtype(case: Case) -> str:
    """The least precise floating dtype of a value."""
    found = {value.dtype for value in types_of(case).values()}
    return next((dtype for dtype in (*LOW_PRECISION, "float32") if dtype in found), "float64")


def _about(
    subject: str, module: str, factor: int, coarsest: str, *, random: bool, gradients: bool, borders: bool
) -> str:
    """The docstring: what is run and what counts as the bug."""
    told = f"Runs the module in float64, in eager, and with {_plain(subject)} for its attention."
    told += " Exits 0 without the bug, 1 with it: where float64 and eager are finite, "
    if random:
        told += "a value is not."
    else:
        told += f"a value is off by more than {factor} times eager's largest error plus {UNITS} eps of {coarsest} times"
        told += f" its tensor's largest magnitude{' (of all gradients, for a gradient)' * gradients}."
    told += " Writes beside what it allocates count as well." * borders
    told += f" Run it where {module} can be imported from." if module else ""
    return textwrap.fill(told, 118, break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")
