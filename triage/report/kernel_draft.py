"""report.md about an attention function, for its author."""

import re
from collections.abc import Sequence

from fuzz.localisation import gradient, named, where_text
from fuzz.protocol import SubjectResult, Verdict
from fuzz.relations import MEANINGS, relation_of
from generators.program.case import Case
from generators.program.emit import source
from generators.program.type_check import types_of
from triage.attribution.ablation import EAGER, MATH, Ablation
from triage.attribution.root_cause import RootCause
from triage.attribution.size_search import Boundary
from triage.rendering import render
from triage.report.draft import HAPPENS, Draft, counted, program_of, rows_of
from triage.report.kernel_repro import MODULES, forward_of, place_of, sdpa_backend, why_a_worker
from triage.report.relations import sides
from triage.report.reproducer import DEATHS, ERRORS, TIMEOUT_EXIT, Run
from triage.report.traceback_excerpt import abridged

_SYMPTOMS = {
    Verdict.WRONG_RESULT: "wrong result",
    Verdict.WRONG_GRADIENT: "wrong gradient",
    Verdict.NONFINITE: "NaN or infinity",
    Verdict.OUT_OF_BOUNDS: "writes out of bounds",
    Verdict.EAGER_SUSPECT: "eager is wrong",
    Verdict.METADATA: "another form of result than eager's",
    Verdict.NONDETERMINISTIC: "different results for equal inputs",
    Verdict.COMPILE_ERROR: "does not compile",
    Verdict.RUNTIME_ERROR: "raises",
    Verdict.TIMEOUT: "does not end",
    Verdict.WORKER_DIED: "ends the process",
    Verdict.OUT_OF_MEMORY: "runs out of memory",
}


def kernel_title(case: Case, subject: str, result: SubjectResult, boundaries: Sequence[Boundary] = ()) -> str:
    """One line such as "attention kernel pkg:attention: wrong gradient dq where S > 64 and S % 64 != 0"."""
    what = _SYMPTOMS[result.verdict]
    if result.verdict is Verdict.WRONG_GRADIENT:
        value = str(result.where.get("value") or result.message.partition(":")[0])
        what += f" {gradient(case, value)}"
    if relation_of(result.message):
        what += f", by the relation {relation_of(result.message)}"
    rules = [b.rule.removeprefix("only where ") for b in boundaries if b.rule.startswith("only where ")]
    where = " where " + " and ".join([*filter(None, [", ".join(rules[:-1])]), rules[-1]]) if rules else ""
    backend = sdpa_backend(subject)
    who = f"scaled_dot_product_attention, {backend} backend" if backend else f"attention kernel {subject}"
    return f"{who}: {what}{where}"


def kernel_report(
    case: Case,
    ablation: Ablation,
    run: Run,
    boundaries: Sequence[Boundary],
    *,
    environment: str,
    triton: str,
    plain: bool,
    shown: str = "",
    cause: RootCause | None = None,
) -> Draft:
    """The report; `plain` says whether repro.py needs no worker of ours, `triton` is its version or "", `shown` what where.png shows."""
    result, hello = ablation.result, ablation.hello
    relation = relation_of(result.message)
    title = kernel_title(case, ablation.accused, result, boundaries)
    told = result.verdict not in ERRORS | DEATHS | {Verdict.TIMEOUT}
    text = render(
        "kernel_report.md.j2",
        title=title,
        happened=_happened(case, ablation),
        control=_control(ablation),
        part=cause.part if cause else "",
        mechanism=cause.mechanism if cause else "",
        evidence=cause.evidence if cause else (),
        where=named(case, where_text(case, result.where)),
        shown=named(case, shown),
        calls=[line.strip() for line in forward_of(case).splitlines() if "attend(" in line],
        shapes=shapes(case),
        program=program_of(case),
        long=program_of(case) != source(case).strip(),
        numbers=run.output.strip() if told else "",
        log="" if told else abridged(run.log),
        rows=rows_of(ablation),
        boundaries=[b.words for b in boundaries],
        plain=plain,
        relation=relation,
        sides=sides(relation) if relation else "",
        why_a_worker=why_a_worker(result),
        place=place_of(ablation.accused),
        home=home_of(ablation.accused),
        subject=ablation.accused,
        code="it did not end" if run.code == TIMEOUT_EXIT else run.code,
        versions=f"torch {hello.torch}, triton {triton or 'not installed'}, Python {hello.python}, "
        + (hello.device_name if hello.device != "cpu" else f"CPU ({hello.device_name})"),
        interpreted=hello.device == "cpu" and not sdpa_backend(ablation.accused) and bool(triton),
        environment=environment,
    )
    what = "NaN" if result.verdict is Verdict.NONFINITE else _SYMPTOMS[result.verdict]
    backend = sdpa_backend(ablation.accused).partition("_")[0].lower()
    return Draft(title, text, is_issue=True, search=f"scaled_dot_product_attention {backend} {what}")


def home_of(subject: str) -> str:
    """Where a bug of the function is to be filed."""
    if sdpa_backend(subject):
        return "https://github.com/pytorch/pytorch/issues, as a bug of this backend"
    if subject in MODULES:
        return "with attnfuzz, whose `kernels/` has it"
    return "with the author of the function"


def shapes(case: Case) -> list[str]:
    """What the contracts' operands are: "q [B, H, S, D] = [1, 2, 65, 16] float32"."""
    types = types_of(case)
    names = dict.fromkeys(name for contract in case.contracts for name in contract.reads.values())
    return [
        f"{name} [{', '.join(map(str, types[name].shape))}] = {list(types[name].sizes(case.sizes))} {types[name].dtype}"
        for name in names
    ]


def _happened(case: Case, ablation: Ablation) -> str:
    result = ablation.result
    relation = relation_of(result.message)
    if relation:
        return (
            f"`{ablation.accused}` gives the right output for the call below. Called again with other arguments, from which the"
            f" output follows ({relation}: {MEANINGS[relation]}), it gives another one: {result.message.partition(': ')[2]}."
        )
    detail = (
        named(case, re.sub(r" \(worst row[^)]*\)|, [^,]* times what rounding explains \([^)]*\)", "", result.message))
        or result.verdict.explanation
    )
    detail += counted(result)
    mode = "forward and backward" if case.training else "forward"
    return f"`{ablation.accused}` {HAPPENS[result.verdict]} in the attention below, {mode}: {detail}."


def _control(ablation: Ablation) -> str:
    told = {True: "fails too", False: "is right", None: "does not take it"}[ablation.fails(MATH)]
    eager = "is wrong in another way" if ablation.fails(EAGER) else "is right"
    if ablation.accused == MATH:
        return f"Eager, of the same dtypes, {eager}."
    return (
        f"Eager, of the same dtypes, {eager}; `F.scaled_dot_product_attention` on its MATH backend, handed the same"
        f" call, {told}."
    )
