"""A finding about an attention function, judged again and made into report.md and repro.py."""

import sys
from dataclasses import replace
from pathlib import Path

from corpus.entry import Entry
from fuzz.evaluator import ROOT, Evaluator, WorkerConfig, open_evaluator
from fuzz.protocol import Verdict
from fuzz.relations import is_of_another_call
from fuzz.subjects import is_named
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from triage.attribution.ablation import EAGER, MATH, Ablation
from triage.attribution.kernel_cause import cause
from triage.attribution.size_search import Boundary, search_sizes
from triage.report import environment, picture, reproducer
from triage.report.draft import Draft, refused
from triage.report.kernel_draft import kernel_report, kernel_title
from triage.report.kernel_repro import texts
from triage.report.reproducer import CANT_RUN, DEATHS, ERRORS, Run

_BOUNDARY_TIMEOUT = 20.0
_TELLS_NOTHING = ERRORS | DEATHS | {Verdict.TIMEOUT}


def draft(entry: Entry, subject: str, setup: WorkerConfig, out: Path) -> Draft:
    """The report about `subject`, and repro.py written beside it, or the page that says why there is none.

    Raises UserError when eager refuses the case, or the subject computes no attention.
    """
    case, repro = entry.case, out / "repro.py"
    setup = replace(setup, named=(subject,) if is_named(subject) else ())
    with open_evaluator(setup, repeat=2, located=True, remember=True) as trials:
        ablation = _climb(case, subject, trials)
        why = _refusal(ablation)
        # Which other arguments a worker tries is drawn by the sizes: others may pass by chance.
        boundaries = [] if why or is_of_another_call(ablation.result.message) else _boundaries(case, ablation, setup)
        blamed = None if why else cause(case, ablation, trials)
    if why is None:
        run, plain = _reproduced(case, ablation, setup, repro, kernel_title(case, subject, ablation.result, boundaries))
        if run is not None:
            return kernel_report(
                case,
                ablation,
                run,
                boundaries,
                cause=blamed,
                plain=plain,
                triton=environment.version("triton", setup.python),
                environment=environment.collect(setup.python, ablation.hello.torch),
                shown=picture.save(case, ablation.result, out),
            )
        why = f"A worker saw {ablation.result.verdict}, but no run of repro.py, a process of its own, shows it."
    for file in (repro, out / picture.FILE):
        file.unlink(missing_ok=True)  # one of an earlier report would seem to belong to this one
    return refused(case, ablation, why)


def _climb(case: Case, subject: str, evaluator: Evaluator) -> Ablation:
    """Eager, PyTorch's MATH backend and the subject, each in a check of its own."""
    hello = evaluator.hello
    if hello.attention and subject not in hello.attention:
        raise UserError(
            f"{subject} computes no attention (see docs/kernels.md), and is not torch.compile either:"
            " a report has no place for it"
        )
    stages = {name: evaluator.evaluate_or_raise(case, name) for name in dict.fromkeys((EAGER, MATH, subject))}
    return Ablation(hello, stages, subject)


def _refusal(ablation: Ablation) -> str | None:
    """Why this is no bug of the function, None when it is one."""
    verdict = ablation.result.verdict
    if verdict is Verdict.EAGER_SUSPECT:
        return f"Eager is wrong, not the kernel: {verdict.explanation}. The report without --subject is about that."
    if ablation.fails(EAGER) and ablation.stages[EAGER].verdict is not Verdict.EAGER_SUSPECT:
        return f"Eager fails too ({ablation.stages[EAGER].verdict}), so the kernel can't be blamed."
    return None if verdict.is_finding else f"The verdict is {verdict}: {verdict.explanation}."


def _boundaries(case: Case, ablation: Ablation, setup: WorkerConfig) -> list[Boundary]:
    repeat = 2 if ablation.result.verdict is Verdict.NONDETERMINISTIC else 1
    limited = replace(setup, timeout=min(setup.timeout, _BOUNDARY_TIMEOUT))
    with open_evaluator(limited, repeat=repeat) as evaluator:

        def judge(other: Case) -> Verdict | None:
            if emit_attention_stub(other) is None:
                return None
            result = evaluator.evaluate(other, (ablation.accused,))
            if not result.results:
                return None
            # A further call has other sizes: what it gets wrong says nothing of these.
            one = result.results[0]
            return Verdict.OK if is_of_another_call(one.message) else one.verdict

        return search_sizes(case, ablation.result.verdict, judge)


def _reproduced(
    case: Case, ablation: Ablation, setup: WorkerConfig, repro: Path, title: str
) -> tuple[Run | None, bool]:
    """The run of the first repro.py that shows the bug, None where none does; and whether it needs no worker."""
    result = ablation.result
    written = list(
        texts(
            case,
            ablation.accused,
            result,
            title,
            device=setup.device,
            seconds=setup.timeout,
            memory_mib=setup.memory_mib,
        )
    )
    for number, text in enumerate(written):
        repro.write_text(text, encoding="utf-8")
        plain = number < len(written) - 1
        # Ours needs more than torch of its interpreter, and is told whose torch is the one to look at.
        python, arguments = (setup.python, ()) if plain else (sys.executable, (setup.python,))
        run = reproducer.run(
            repro, python, seconds=3 * setup.timeout, importable=(str(ROOT), str(Path.cwd())), arguments=arguments
        )
        if run.code not in (0, CANT_RUN) and (result.verdict in _TELLS_NOTHING or run.output.strip()):
            return run, plain
    return None, False
