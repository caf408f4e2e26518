"""Text of reports and pages: title, summary and cause of a finding, or the reason why it gets no report."""

import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from corpus.causes import COMPILER_LABELS, Part, Stage, find_project, name_part
from corpus.fault import FaultyLine
from fuzz.attribution.ablation import EAGER, Ablation, describe_stage
from fuzz.attribution.root_cause import RootCause
from fuzz.bug_identity import operation_of
from fuzz.durations import format_count
from fuzz.error_location import describe_with_names, find_name, name_gradient, name_value
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised, WrongValue
from fuzz.protocol.places import Place, make_permalink
from fuzz.subjects import compiler_of, get_spec, is_attention, list_packages
from generators.program.calls import describe_differences
from generators.program.case import Case
from generators.program.ops import VIEWS
from generators.program.roles import find_attentions
from generators.program.settings import describe_settings
from generators.program.values import LOW_PRECISION
from triage.report.failing_run import is_kernel, is_of_config

_CONTEXT, _WIDEST, _NAMED = 2, 120, 3
_SOURCE = re.compile(r"`?\btorch/([\w/]+\.(?:py|h))(?::(\d+))?`?")
_SAID = {"wrong", "fails", "other_values", "compiling_raises", "running_raises", *Verdict}
"""Mechanisms that say no more than the verdict and the exception."""


def refuse(ablation: Ablation) -> str | None:
    """Why this is no bug of torch.compile, of eager or of the attention function; None if it is a bug."""
    verdict, is_function = ablation.result.verdict, is_attention(ablation.accused)
    blamed = "the kernel" if is_function else "torch.compile"
    if verdict is Verdict.EAGER_SUSPECT:
        why = f"Eager is wrong, not the kernel: {verdict.label}. Leave out --subject for a report about eager."
        return why if is_function else None
    # A bug of eager does not clear the compiler: both are compared with float64.
    if ablation.fails(EAGER) and ablation.stages[EAGER].verdict is not Verdict.EAGER_SUSPECT:
        return f"Eager fails too ({ablation.stages[EAGER].verdict}), so {blamed} can't be blamed."
    return None if verdict.is_finding else f"The verdict is {verdict}: {verdict.label}."


def title(case: Case, result: SubjectResult, device: str, cause: RootCause | None = None) -> str:
    """One line such as "[Inductor][CPU] attention (matmul, div, softmax, ...): output 0 is off by up to 2.3 from
    float64, eager by 3e-08", or "attention kernel pkg:attention: wrong gradient dq". If a rewrite calls an operation
    that is at fault in eager too, as `cause` says, the operation takes the compiler's place.
    """
    if not is_kernel(result):
        spec, project = get_spec(result.subject), find_project(result.subject)
        compiled = result.subject if spec.is_exported else COMPILER_LABELS.get(compiler_of(result.subject), "Inductor")
        name = project.label if spec.is_foreign else compiled
        compiler = "" if result.verdict is Verdict.EAGER_SUSPECT else f"[{name}]"
        if cause and any(rewrite.faulty for rewrite in cause.rewrites[:1]):
            part = cause.part.removeprefix("aten.")
            return f"[{device.upper()}] {part} in eager, and in compiled attention: {spell(result.verdict)}"
        symptom = textwrap.shorten(describe_symptom(case, result), 120, placeholder=" …")
        return f"{compiler}[{device.upper()}] {describe_program(case, result)}: {symptom}"
    backend = get_spec(result.subject).sdpa
    who = f"scaled_dot_product_attention, {backend} backend" if backend else f"attention kernel {result.subject}"
    what = spell(result.verdict)
    if result.verdict is Verdict.WRONG_GRADIENT and result.value:
        what += f" {name_gradient(case, result.value) or f'of {find_name(case, result.value)}'}"
    return " ".join(filter(None, [f"{who}: {what}", describe_before(case)]))


def spell(verdict: str) -> str:
    """A verdict, status or mode in words: "wrong result"."""
    return Verdict(verdict).words if verdict in {*Verdict} else verdict.replace("_", " ")


def summarize(case: Case, ablation: Ablation, *, has_numbers: bool = False) -> str:
    """The failure in a sentence: how it shows and under which compiler, with torch and device.

    `has_numbers`: with the numbers of the worker's run. Those of the script are of another run.
    """
    result, accused, hello = ablation.result, ablation.accused, ablation.hello
    name = describe_stage(accused, result.subject, case, as_config=is_of_config(result))
    way = "in eager mode" if result.verdict is Verdict.EAGER_SUSPECT else f"with {name}"
    symptom = describe_with_names(case, result) if has_numbers and result.failure else describe_symptom(case, result)
    ways = " ".join(filter(None, [result.verdict.verb, way, "in training" * case.training, describe_before(case)]))
    versions = (
        f"torch {hello.torch}",
        spell_runtime(result.subject, hello.packages),
        hello.device_name or hello.device,
    )
    where = ", ".join(filter(None, versions))
    return f"The module below {ways} ({where}): {symptom}."


def spell_runtime(subject: str, versions: Mapping[str, str]) -> str:
    """The runtime of a subject with its version, such as "openvino 2026.4.1"; "" for torch alone."""
    names = list_packages(subject)[:1]
    return ", ".join(f"{name} {versions.get(name, '')}".rstrip() for name in names)


def warn(verdict: Verdict) -> str:
    """The first line of a report that nobody should run unprepared; "" for other reports."""
    return f"Careful: the program of this report {verdict.verb}." if verdict.is_lost else ""


def describe_before(case: Case) -> str:
    """The earlier cases that a failure needs, in words; "" if it needs none."""
    runs = sum(earlier.times for earlier in case.before)
    return f"after {format_count(runs, 'earlier case')} in the same process" if runs else ""


def describe_cause(cause: RootCause, fault: FaultyLine | None = None) -> str:
    """The stage and part that experiments found, and the mechanism. `fault`: the line, as a person found it."""
    of_inductor = cause.stage is Stage.DECOMPOSITION and bool(fault and fault.file.startswith("_inductor/"))
    who = COMPILER_LABELS["inductor"] if of_inductor else COMPILER_LABELS.get(cause.who, cause.who)
    place, part = (f"{who}'s {cause.stage.words}" if cause.stage.words else who, name_part(cause.part, Stage.OPEN))
    place = "the operation" if cause.stage is Stage.OPERATION and part else f"{place}," if part else place
    how = "" if cause.mechanism.kind.value in _SAID else f": {cause.mechanism}"
    if not part:
        unknown = "" if fault else " Which part of it is at fault is not known."
        return f"The first stage that fails is {place}{how}.{unknown}"
    named = part if cause.part in {*Part} else f"`{part}`"
    shown = "By experiments, the first part that fails is" if fault else "The fault is in"
    return f"{shown} {place} {named}{how}."


def describe_fault(fault: FaultyLine) -> str:
    """The line at fault with its address and how it is known, in Markdown."""
    return f"{link_line(fault)} in `{fault.function}`, {fault.evidence} (torch {fault.torch})"


def describe_unmended(total: int, reasons: Mapping[str, int]) -> str:
    """The number of cases that fail with a patch as without it, and why: bugs of the ledger, or verdicts."""
    bugs = {why: n for why, n in reasons.items() if why not in {*Verdict}}
    told = [f"{n} with the verdict {spell(why)}" for why, n in reasons.items() if why not in bugs]
    if bugs:
        most = ", ".join(f"{n} of {why}" for why, n in [*bugs.items()][:_NAMED])
        told.insert(0, f"{sum(bugs.values())} by {format_count(len(bugs), 'other known bug')}, such as {most}")
    return f"{total} fail{'s' * (total == 1)} as without it{': ' * bool(told)}{'; '.join(told)}. " if total else ""


def link_line(fault: FaultyLine) -> str:
    """The line at fault as a link, in Markdown."""
    return _link(fault.file, fault.line, fault.torch, of_torch=True)


def describe_place(place: Place, torch: str) -> str:
    """A place with its address and how it was found, in Markdown."""
    how = place.found.label
    # A bare name is a file outside of torch.
    name = _link(place.file, place.line, torch, of_torch="/" in place.file) if place.file else ""
    return f"{name} in `{place.function}`: {how}" if name else f"`{place.function}`: {how}"


def _link(file: str, line: int, torch: str, *, of_torch: bool) -> str:
    """A line of a release, in Markdown."""
    address, name = make_permalink(file, line, torch) if of_torch else "", f"{'torch/' * of_torch}{file}:{line}"
    return f"[{name}]({address})" if address else name


def quote_source(place: Place | FaultyLine, home: str) -> str:
    """The line with two lines before and after it, numbered; "" if they are long or not readable here."""
    file = Path(home) / place.file
    lines = file.read_text(encoding="utf-8").splitlines() if place.line and home and file.is_file() else []
    first = max(1, place.line - _CONTEXT)
    shown = lines[first - 1 : place.line + _CONTEXT]
    numbered = [f"{'>' if n == place.line else ' '} {n} {line}".rstrip() for n, line in enumerate(shown, first)]
    return "" if max(map(len, numbered), default=0) > _WIDEST else "\n".join(numbered)


def link_source(text: str, torch: str) -> str:
    """The text, in which places such as `torch/_inductor/ir.py:12` are links to the tag of a release, in Markdown."""

    def link(found: re.Match[str]) -> str:
        address = make_permalink(found[1], int(found[2] or 0), torch)
        return f"[{found[0].strip('`')}]({address})" if address else found[0]

    return _SOURCE.sub(link, text)


def describe_symptom(case: Case, result: SubjectResult) -> str:
    """The failure without the sizes of errors, which differ from run to run, and with the program's names of values. Of
    a text that was cut, the whole sentences."""
    failure = result.failure
    if result.verdict is Verdict.EAGER_SUSPECT:
        is_finite = math.isfinite(result.numbers.get("eager_error", math.inf))
        words = "is off from float64" if is_finite else "is not finite where float64 is"
        operation = f" ({operation_of(result)})" if operation_of(result) else ""
        return f"eager {words}{operation}"
    if isinstance(failure, WrongValue) and result.value:
        name = name_value(case, result.value)
        return (
            f"{name} is missing"
            if failure.gradient_missing
            else f"{name} is off from float64 by more than rounding, eager's is not"
        )
    if isinstance(failure, Raised) and failure.text.endswith("…"):
        whole = failure.text.rpartition(". ")[0] or failure.text
        result = replace(result, failure=replace(failure, text=whole))
    return describe_with_names(case, result).rstrip(".! ") or result.verdict.label


def describe_program(case: Case, result: SubjectResult) -> str:
    """The program in a few words: its first operations, and its mode."""
    kinds = [op.kind for op in case.ops]
    named = [kind for kind in kinds if kind not in VIEWS | {"scalar"}] or kinds
    few = ", ".join([*named[:3], *["..."] * (len(named) > 3)])
    low = sorted({item.dtype for item in case.inputs if item.dtype in LOW_PRECISION})
    settings = describe_settings(dict(case.settings), as_config=is_of_config(result))
    words = [
        f"attention ({few})" if find_attentions(case) else few,
        f"in {' and '.join(low)}" if low else "",
        f"in {spell(case.mode)}" if case.mode != "inference" else "",
        "with symbolic sizes" if case.dynamic else "",
        f"with {settings}" if settings else "",
        f"called again with {describe_differences(case)}" if case.calls else "",
        describe_before(case),
    ]
    return " ".join(filter(None, words))
