"""report.md and repro.py of one ablation, as text."""

import math
import re
import shlex
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote_plus

from fuzz.campaign.symptom import attention_patterns, operation_of
from fuzz.localisation import where_text
from fuzz.protocol import SubjectResult, Verdict
from fuzz.relations import is_of_another_call
from generators.program.case import Case
from generators.program.emit import source
from triage.attribution.ablation import Ablation
from triage.attribution.cause import Attribution
from triage.attribution.explain import Explanation
from triage.rendering import render
from triage.report.diagnosis import blame, sentence
from triage.report.reproducer import TIMEOUT_EXIT, Run
from triage.report.title import title
from triage.report.traceback_excerpt import abridged

REPOSITORY = "pytorch/pytorch"
_URL_LIMIT = 8000
"""gh refuses to open an address of 8192 characters or more; title and repository take some of them."""

_PROGRAM_LINES = 45
MOST_LINES = 119
"""Of a report: longer ones are not read."""

_SEARCH_WORDS = 6
_SYMPTOMS = {
    Verdict.NONFINITE: "NaN",
    Verdict.METADATA: "wrong stride",
    Verdict.WORKER_DIED: "crash",
    Verdict.TIMEOUT: "hang",
}
_RAISED = frozenset({Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR})
_ERRORS = frozenset(
    {Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY}
)

HAPPENS = {
    Verdict.WRONG_RESULT: "gives a wrong result",
    Verdict.WRONG_GRADIENT: "gets a wrong gradient",
    Verdict.NONFINITE: "gives NaN or infinity where eager and float64 are finite",
    Verdict.METADATA: "returns another form of result than in eager",
    Verdict.NONDETERMINISTIC: "gives different results for equal inputs",
    Verdict.OUT_OF_BOUNDS: "writes to memory that is not its own",
    Verdict.EAGER_SUSPECT: "is wrong in eager, without a compiler",
    Verdict.COMPILE_ERROR: "does not compile",
    Verdict.RUNTIME_ERROR: "compiles and then raises",
    Verdict.TIMEOUT: "does not end",
    Verdict.WORKER_DIED: "ends the process",
    Verdict.OUT_OF_MEMORY: "runs out of memory",
}


@dataclass(frozen=True, slots=True)
class Draft:
    """What is written for one case: a title, the text of report.md, whether that is an issue to open, and the words by which
    somebody else's report of it may be found."""

    title: str
    text: str
    is_issue: bool
    search: str = ""


def issue(
    case: Case,
    ablation: Ablation,
    run: Run,
    environment: str,
    attribution: Attribution | None = None,
    explanation: Explanation | None = None,
    shown: str = "",
    seen: str = "",
) -> Draft:
    """The draft of an issue, in the order of PyTorch's form for torch.compile bugs; `shown`: what where.png shows;
    `seen`: what torch versions gave."""
    result = ablation.result
    cause = attribution.cause if attribution else None
    bisection = attribution.bisection if attribution else None
    ablation = (attribution.ablation if attribution else None) or ablation
    name = title(case, result, ablation.hello.device)
    filled = partial(
        render,
        "report.md.j2",
        title=name,
        happened=_happened(ablation),
        eager=result.verdict is Verdict.EAGER_SUSPECT,
        # What eager gets wrong is told by how it was found; of all else the cause says more.
        blame=blame(ablation) if cause is None or result.verdict is Verdict.EAGER_SUSPECT else sentence(cause),
        evidence=cause.evidence if cause else (),
        mechanism=cause.mechanism if cause else "",
        bisector=bisection.line if bisection else "",
        sentences=explanation.sentences if explanation else [],
        control=explanation.control if explanation else None,
        diff=explanation.diff() if explanation else [],
        where=where_text(case, result.where),
        shown=shown,
        numbers="" if result.verdict in _ERRORS else run.output.strip(),
        rows=rows_of(ablation),
        fired=", ".join(f"`{name}`" for name in result.fired),
        code="it did not end" if run.code == TIMEOUT_EXIT else run.code,
        log=abridged(run.log) if result.verdict in _ERRORS else "",
        environment=environment,
        seen=seen,
    )
    text = filled(program=program_of(case))
    if text.count("\n") >= MOST_LINES:
        text = filled(program=program_of(case, 0))
    return Draft(name, text, is_issue=True, search=search_words(case, result))


def search_words(case: Case, result: SubjectResult) -> str:
    """What others would have written about the same bug: an operation, a rewrite or an exception by name, and the symptom."""
    verdict, numbers = result.verdict, result.numbers
    symptom = _SYMPTOMS.get(verdict, str(verdict).replace("_", " "))
    if verdict is Verdict.EAGER_SUSPECT:
        finite = math.isfinite(numbers.get("eager_error", math.inf))
        return f"{operation_of(result).removeprefix('aten.')} {'wrong result' if finite else 'NaN'}"
    if verdict in _RAISED:
        kind, _, words = result.message.partition(": ")
        return " ".join([kind, *re.findall(r"[A-Za-z_]{2,}", words)[:_SEARCH_WORDS]])
    patterns = sorted(attention_patterns(result.fired))
    if patterns:
        return f"_{patterns[0]}"
    sdpa = any(op.kind == "sdpa" for op in case.ops)
    return f"inductor {'scaled_dot_product_attention' if sdpa else 'attention'} {symptom}"


def refused(case: Case, ablation: Ablation, why: str) -> Draft:
    """The page that says why the case is not reported."""
    result = ablation.result
    text = render(
        "refusal.md.j2",
        verdict=result.verdict,
        why=why,
        message=result.message,
        rows=rows_of(ablation),
        eager=f"{result.numbers['eager_error']:.2g}" if "eager_error" in result.numbers else "not measured",
        torch=ablation.hello.torch,
        device=ablation.hello.device,
        case=case.id,
        program=source(case).strip(),
    )
    return Draft(f"not a bug to report: {result.verdict}", text, is_issue=False)


def commands(draft: Draft, report: str) -> list[str]:
    """What a person types to look for duplicates and to open the issue in a browser; nothing here runs them."""
    search = shlex.join(["gh", "search", "issues", "--repo", REPOSITORY, *draft.search.split()])
    create = ["gh", "issue", "create", "--repo", REPOSITORY, "--title", draft.title]
    if len(quote_plus(draft.text)) < _URL_LIMIT:
        create += ["--body-file", report]
    return [search, shlex.join([*create, "--web"])]


def _happened(ablation: Ablation) -> str:
    """The first sentence: what torch.compile does, or eager, where, and by how much."""
    result = ablation.result
    where = f"torch {ablation.hello.torch}, {ablation.hello.device_name or ablation.hello.device}"
    detail = re.split(r" \(worst row|; this subject", result.message)[0] or result.verdict.explanation
    detail += counted(result)
    if result.verdict is Verdict.EAGER_SUSPECT:
        return f"The module below {HAPPENS[result.verdict]} ({where}): {detail}."
    return f"The module below {HAPPENS[result.verdict]} under `{ablation.label(ablation.accused)}` ({where}): {detail}."


def rows_of(ablation: Ablation) -> list[list[str]]:
    """The stages of an ablation as rows of a table: who, verdict, error, what `same` says."""
    labels = {name: ablation.label(name) for name in ablation.stages}
    return [
        [f"`{labels[name]}`" if "=" in labels[name] else labels[name], *_cells(result)]
        for name, result in ablation.stages.items()
    ]


def _cells(result: SubjectResult) -> list[str]:
    error = result.numbers.get("compiled_error")
    told = "-" if error is None else f"{error:.2g}"
    same = "-" if result.same is None else str(result.same)
    if is_of_another_call(result.message):
        told, same = f"{told} (of the call itself, which is right)", "-"
    elif result.verdict is Verdict.NONFINITE:
        told = "not finite"
    return [str(result.verdict).replace("_", " "), told, same]


def counted(result: SubjectResult) -> str:
    """How many rows are wrong, as the end of a sentence; "" where that is not known, or of a call that is right."""
    wrong, total = (result.numbers.get(name, 0.0) for name in ("rows_wrong", "rows_total"))
    if not wrong or is_of_another_call(result.message):
        return ""
    return (
        f"; {wrong:.0f} of {total:.0f} rows {'is' if wrong == 1 else 'are'} wrong"
        if total > 1
        else "; its only row is wrong"
    )


def program_of(case: Case, most: int = _PROGRAM_LINES) -> str:
    """The text of a case, or where it is to be found when it has more than `most` lines."""
    text = source(case).strip()
    lines = text.count("\n") + 1
    return text if lines <= most else f"# {lines} lines, at the top of repro.py"
