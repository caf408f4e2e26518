"""repro.py about an attention function: the case, the case with a call of the function, and a comparison.

It needs torch and the function alone. What such a run can't show takes a worker's memory, and `replaying` gives the
script that asks for one.
"""

import json
import re
import textwrap
from collections.abc import Iterator

from corpus.entry import Entry, Expectation, dumps
from fuzz.protocol import SubjectResult, Verdict
from fuzz.relations import MEANINGS, is_of_another_call, relation_of
from fuzz.subjects import SUBJECTS, get_spec, is_named
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.dtypes import LOW_PRECISION
from generators.program.emit import is_random, source
from generators.program.type_check import types_of
from triage.rendering import render
from triage.report.relations import sides
from triage.report.reproducer import ERRORS, IMPORTS, MAX_LINES, differentiable, failing

FACTOR, FACTOR_LOW_PRECISION = 10, 4
"""A kernel may be this often as far from float64 as eager at its worst. Measured: over three findings of each
defect in benchmarks/defects.py all but two exceed it, and none of 80 cases of the bundled kernels does. In low precision
eager that rounds at every step is itself far off, so that less room is needed."""

UNITS = 8
"""Units in the last place of the largest magnitude that are nothing: eager may be exact by luck."""

MODULES = {name: spec.function for name, spec in SUBJECTS.items() if spec.function}
_CAST = re.compile(r"torch\.(float|double|half|bfloat)|\.(float|half|bfloat16|double)\(\)|dtype=")
_FILL = re.compile(r", fill=[^,)]+")
_BY_MEMORY = frozenset({Verdict.OUT_OF_BOUNDS, Verdict.NONFINITE, Verdict.NONDETERMINISTIC, Verdict.WORKER_DIED})


def texts(
    case: Case, subject: str, result: SubjectResult, title: str, *, device: str, seconds: float, memory_mib: int
) -> Iterator[str]:
    """Texts of repro.py for a subject that gave `result`, the best one first: one that runs the function as it is (not
    where it is known to write beside its buffers), one that puts borders around what it allocates, and one that asks a
    worker. Where a relation between two calls is broken the first makes both of them."""
    if relation_of(result.message):
        yield _relating(case, subject, result, title, device)
        yield replaying(case, subject, result, title, device)
        return
    fenced = result.verdict in _BY_MEMORY or "wrote " in result.message
    fenceable = (
        is_named(subject) or (bool(get_spec(subject).function) and not get_spec(subject).backend)
    ) and result.verdict not in ERRORS | {Verdict.TIMEOUT, Verdict.METADATA}
    for borders in (False, True):
        if fenceable if borders else not (fenced and fenceable):
            yield _running(case, subject, result, title, device, seconds, memory_mib, borders=borders)
    yield replaying(case, subject, result, title, device)


def sdpa_backend(subject: str) -> str:
    """The backend of `F.scaled_dot_product_attention` that a subject is, "" where it is none."""
    return get_spec(subject).sdpa


def place_of(subject: str) -> str:
    """Where a script that imports the function has to be run; "" where torch is enough."""
    if not is_named(subject) and subject not in MODULES:
        return ""
    return (
        f"where {subject.partition(':')[0]} can be imported from" if is_named(subject) else "in a checkout of attnfuzz"
    )


def _start(subject: str, device: str) -> dict[str, object]:
    """What the beginning of a script needs: the function's module, and where it is."""
    module, _, function = (subject if is_named(subject) else MODULES.get(subject, "")).partition(":")
    return {
        "module": module,
        "function": function,
        "place": place_of(subject),
        "interpreted": device == "cpu",
        "sdpa_backend": sdpa_backend(subject),
        "device": device,
        "to_device": "" if device == "cpu" else f'.to("{device}")',
        "arguments": "inputs()" if device == "cpu" else f'[a.to("{device}") for a in inputs()]',
    }


def _relating(case: Case, subject: str, result: SubjectResult, title: str, device: str) -> str:
    """The script that calls the function as the case does and again as the broken relation has it."""
    name, start = relation_of(result.message), _start(subject, device)
    factor = FACTOR_LOW_PRECISION if coarsest_dtype(case) in LOW_PRECISION else FACTOR
    told = f"Calls {_plain(subject)} as the module does and again with other arguments, by the relation {name}: {MEANINGS[name]}."
    told += f" Exits 0 without the bug, 1 with it: where float64 is finite, the two differ by more than {factor} times what eager"
    told += f" is off on both, plus {UNITS} eps of the largest value, or one is not finite. 125: it can't run."
    told += f" Run it {start['place']}." if start["place"] else ""
    extras = [
        name for name in ("softcap", "alibi", "sinks") if any(getattr(c, name) is not None for c in case.contracts)
    ]
    return _short(
        render(
            "relation_repro.py.j2",
            title=_plain(title),
            about=_wrapped(told),
            imports=["os", "sys"] if start["module"] else ["sys"],
            nulls=False,
            called="kernel",
            source=source(case).strip(),
            forward=forward_of(case),
            relation=name,
            sides=sides(name),
            extras=extras,
            training=case.training,
            factor=factor,
            units=UNITS,
            **start,
        )
    )


def _short(text: str) -> str:
    """The text, with fewer empty lines where it is long."""
    return text if text.count("\n") < MAX_LINES else re.sub(r"\n\n\n+", "\n\n", text)


def _running(
    case: Case,
    subject: str,
    result: SubjectResult,
    title: str,
    device: str,
    seconds: float,
    memory_mib: int,
    *,
    borders: bool,
) -> str:
    verdict, program = result.verdict, source(case).strip()
    random, gradients = is_random(case), case.training and differentiable(case)
    start = _start(subject, device)
    sdpa = any(op.kind == "sdpa" for op in case.ops)
    casts = bool(_CAST.search(program.partition("\ndef inputs")[0]))
    coarsest = coarsest_dtype(case)
    factor = FACTOR_LOW_PRECISION if coarsest in LOW_PRECISION else FACTOR
    names = [item.name for item in case.inputs if not item.parameter]
    return _short(
        render(
            "kernel_repro.py.j2",
            title=_plain(title),
            about=_about(subject, factor, coarsest, random=random, gradients=gradients, borders=borders),
            imports=sorted({"sys"} | ({"os"} if start["module"] else set()) | IMPORTS.get(verdict, set())),
            nulls=sdpa or casts,
            called="attend",
            source=program,
            forward=forward_of(case),
            sdpa=sdpa,
            casts=casts,
            borders=borders,
            compiled=bool(get_spec(subject).function and get_spec(subject).backend),
            dynamic=case.dynamic,
            training=case.training,
            gradients=gradients,
            random=random,
            names=json.dumps(names),
            parameters=any(item.parameter for item in case.inputs),
            inputs_kept=" itself" in result.message,
            coarsest=coarsest,
            factor=factor,
            units=UNITS,
            **failing(verdict, seconds, memory_mib),
            **start,
        )
    )


def replaying(case: Case, subject: str, result: SubjectResult, title: str, device: str) -> str:
    """The script that runs the case in a worker."""
    entry = Entry(case, expect=Expectation("pass", subject=subject, device=device))
    place = "in a checkout of attnfuzz" + (f", {place_of(subject)}" if is_named(subject) else "")
    told = f"A plain run of {_plain(subject)} does not show this: {why_a_worker(result)}. Run it {place}."
    told += " Another interpreter, whose torch to look at, may be given."
    told += " Exits 0 without the bug, 1 with it, 125 where it can't tell."
    return render(
        "kernel_replay.py.j2",
        title=_plain(title),
        about=_wrapped(told),
        subject=_plain(subject),
        device=device,
        place=place,
        case=dumps(entry).strip(),
    )


def why_a_worker(result: SubjectResult) -> str:
    """What attnfuzz's workers do that a plain run does not, as far as it may be why only they show a finding."""
    if is_of_another_call(result.message) or result.message.startswith("dropout: "):
        return "it takes further calls with other arguments, which attnfuzz's workers make"
    if result.verdict in _BY_MEMORY or "wrote " in result.message:
        return "it takes memory that is filled and fenced, which attnfuzz's workers give"
    return "it takes the limits of attnfuzz's workers, which know element by element what rounding explains"


def forward_of(case: Case) -> str:
    """`forward` of the case's stand-in, which calls `attend`. A finite fill was tried: it is as good as -inf here."""
    text = emit_attention_stub(case) or ""
    start = text.index("    def forward(")
    return _FILL.sub("", text[start : text.index("\n\n\ndef inputs()", start)]).rstrip()


def coarsest_dtype(case: Case) -> str:
    """The least precise floating dtype of a value."""
    found = {value.dtype for value in types_of(case).values()}
    return next((dtype for dtype in (*LOW_PRECISION, "float32") if dtype in found), "float64")


def _about(subject: str, factor: int, coarsest: str, *, random: bool, gradients: bool, borders: bool) -> str:
    """The docstring: what is run and what counts as the bug."""
    told = f"Runs the module in float64, in eager, and with {_plain(subject)}."
    told += " Exits 125 if it can't run, 0 without the bug, 1 with it: where float64 and eager are finite, "
    if random:
        told += "a value is not."
    else:
        told += f"a value is off by more than {factor} times eager's largest error plus {UNITS} eps of {coarsest} times"
        told += f" its tensor's largest magnitude{' (of all gradients, for a gradient)' * gradients}."
    told += " So do writes beside what it allocates." * borders
    return _wrapped(told)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 124, break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")
