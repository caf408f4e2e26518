"""Turn a case into a report, for PyTorch or for a kernel's author: `python -m triage.report WHAT --out DIR`. Nothing is ever sent."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import enter

if TYPE_CHECKING:
    from corpus.entry import Entry
    from fuzz.evaluator import Evaluator, WorkerConfig
    from triage.attribution.ablation import Ablation
    from triage.attribution.cause import Attribution
    from triage.attribution.explain import Explanation
    from triage.report.draft import Draft
    from triage.report.reproducer import Run


def report(
    what: Path,
    *,
    out: Path,
    ledger: Path | None = None,
    subject: str | None = None,
    python: str | None = None,
    device: str | None = None,
    timeout: str = "120s",
    memory: int = 8192,
    explain: str = "60s",
    mode: list[str] | None = None,
    trace: bool = False,
    overwrite: bool = False,
) -> int:
    """Write report.md, the draft of an issue, repro.py, one file that needs torch alone, and where.png, for a case; for a run
    one of each for every root cause that `triage.cluster` told, and for every finding whose cause nobody told.

    The case is judged again, under every backend from eager to Inductor, and repro.py is run. What is no bug of
    torch.compile (rounding, an unstable program, NaN by design, casts elided by design, a difference that PyTorch's
    own check accepts) gets a report.md that says why, and no issue; the exit code is 0 then too.

    where.png shows which heads, rows and features are wrong; there is none where nothing but a single number is.

    A case about an attention function gets what its author needs instead: the call, the sizes that fail, and a
    repro.py that imports the function.

    Parameters
    ----------
    what
        A case file, the id of a bug in the ledger, or a run directory.
    out
        Directory for report.md, repro.py and where.png; made if need be. Of a run each report has a directory in it.
    ledger
        The ledger of bugs; corpus/ledger.yaml of this checkout when left out.
    subject
        The attention function to report about, by default the case's own. One of yours, package.module:function, has
        to be named here, since it is imported.
    python
        The interpreter, and so the torch version, to report about; the current one by default.
    device
        cpu or cuda; by default the device the case is about.
    timeout
        How long one stage of the case may take, such as 60s.
    memory
        MiB of memory a worker may use.
    explain
        How long to look for what the failure takes, by judging cases one step beside it, such as 30s; 0s: not at all.
    mode
        A mode of torch.compile to try besides, reduce-overhead or max-autotune; may be repeated.
    trace
        Run repro.py once more with TORCH_TRACE and keep what torch writes as trace.zip, which tlparse reads.
    overwrite
        Replace a report.md that is there, with whatever was written into it.
    """
    import sys

    from corpus import ledger as ledgers
    from fuzz.campaign.budget import duration
    from fuzz.evaluator import ROOT, WorkerConfig
    from generators.errors import UserError
    from triage.attribution.ablation import MODES
    from triage.report.targets import targets

    for wanted in mode or ():
        if wanted not in MODES.values():
            raise UserError(f"mode {wanted!r} is not one of {', '.join(MODES.values())}")
    budget = 0.0 if explain == "0s" else duration(explain, "explain")
    setup = WorkerConfig(
        python or sys.executable, device or "", timeout=duration(timeout, "timeout"), memory_mib=memory
    )
    asked = _Asked(setup, subject, budget, tuple(mode or ()), trace, overwrite)
    wanted_cases = list(targets(what, ledgers.load(ledger or ROOT / "corpus" / "ledger.yaml")))
    refused = 0
    for name, case in wanted_cases:
        try:
            print("\n".join(_report(case, out / name, asked)), flush=True)  # noqa: T201 - a command line prints its result
        except UserError as error:
            if len(wanted_cases) == 1:
                raise
            refused += 1
            print(f"{case}: no report: {error}", file=sys.stderr)  # noqa: T201 - the others are reported
    return 2 if refused else 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line says of every report; `setup.device` is "" for that of the case."""

    setup: "WorkerConfig"
    subject: str | None
    explain: float
    modes: tuple[str, ...]
    trace: bool
    overwrite: bool


def _report(case: Path, out: Path, asked: _Asked) -> list[str]:
    """Write what there is to say of one case; the lines to print."""
    from corpus.entry import DEVICES, load
    from fuzz.subjects import get_spec, is_named
    from generators.errors import UserError
    from triage.report import kernel, reproducer
    from triage.report.draft import commands
    from triage.report.kernel_repro import sdpa_backend

    entry, subject = load(case), asked.subject
    attention = subject or (entry.subject if is_named(entry.subject) or get_spec(entry.subject).is_attention else None)
    if attention is not None and is_named(attention) and subject is None:
        # A case file is data: that it names a function is no reason to import it.
        raise UserError(f"{case}: is about {attention}, which runs code of yours: allow it with --subject {attention}")
    if attention is not None and not is_named(attention) and not get_spec(attention).is_attention:
        raise UserError(f"subject {attention!r} is not an attention function; leave --subject out for torch.compile")
    setup = replace(asked.setup, device=asked.setup.device or entry.device)
    if setup.device not in DEVICES:
        raise UserError(f"device {setup.device!r} is not one of {', '.join(DEVICES)}")
    file = out / "report.md"
    if file.exists() and not asked.overwrite:
        raise UserError(f"{file} exists and may hold your words; give another --out, or --overwrite")
    _prepare(out)
    if attention is None:
        draft = _draft(entry, setup, out, asked.explain, asked.modes)
    else:
        draft = kernel.draft(entry, attention, setup, out)
    _write(file, draft.text)
    lines = [draft.title, f"  {file}"]
    if draft.is_issue:
        lines += [f"  {other}" for other in (out / "repro.py", out / "where.png") if other.exists()]
        if asked.trace:
            lines.append(f"  {reproducer.traced(out / 'repro.py', setup.python)}")
    if draft.is_issue and (attention is None or sdpa_backend(attention)):
        lines += ["Nothing was sent. Read it, say in your own words where you met it, and then:"]
        lines += [f"  {command}" for command in commands(draft, str(file))]
    return lines


def _draft(entry: "Entry", setup: "WorkerConfig", out: Path, explain: float, modes: tuple[str, ...]) -> "Draft":
    from fuzz.evaluator import open_evaluator
    from triage.attribution.ablation import run_ablation
    from triage.report import environment, picture
    from triage.report.diagnosis import accepted, refusal
    from triage.report.draft import issue, refused
    from triage.report.versions import seen_in

    with open_evaluator(setup, repeat=2, located=True, remember=True) as trials:
        ablation = run_ablation(entry, trials, modes=modes)
        why = refusal(ablation)
        if why is not None:
            for file in ("repro.py", picture.FILE):
                (out / file).unlink(missing_ok=True)  # one of an earlier report would seem to belong to this one
            return refused(entry.case, ablation, why)
        _say(
            f"{ablation.result.verdict} under {ablation.accused}: running repro.py, PyTorch's bisector and controls, for some two minutes"
        )
        run = _reproduced(entry, ablation, setup, out / "repro.py")
        if run.code == 0:
            (out / picture.FILE).unlink(missing_ok=True)
            return refused(entry.case, ablation, accepted(ablation))
        attribution, explanation = _looked_into(entry, ablation, trials, out / "repro.py", setup.python, explain)
    told = environment.collect(setup.python, ablation.hello.torch)
    shown = picture.save(entry.case, ablation.result, out)
    return issue(entry.case, ablation, run, told, attribution, explanation, shown, seen_in(entry, ablation))


def _reproduced(entry: "Entry", ablation: "Ablation", setup: "WorkerConfig", repro: Path) -> "Run":
    """repro.py is written and run."""
    from fuzz.subjects import get_spec
    from generators.errors import UserError
    from triage.attribution.ablation import DYNAMIC
    from triage.report import reproducer
    from triage.report.title import title

    text = reproducer.text(
        entry.case,
        ablation.result.verdict,
        title(entry.case, ablation.result, setup.device),
        device=setup.device,
        dynamic=ablation.accused == DYNAMIC,
        own_random=get_spec(entry.subject).random,
        seconds=setup.timeout,
        memory_mib=setup.memory_mib,
    )
    _write(repro, text)
    run = reproducer.run(repro, setup.python, seconds=3 * setup.timeout)
    if run.code == reproducer.CANT_RUN:
        raise UserError(f"{repro} does not run under {setup.python}: {run.log.strip()[-200:]}")
    return run


def _looked_into(
    entry: "Entry", ablation: "Ablation", trials: "Evaluator", repro: Path, python: str, seconds: float
) -> "tuple[Attribution, Explanation | None]":
    """Who is at fault, and what it takes."""
    from fuzz.protocol import Verdict
    from triage.attribution.ablation import PASSES, cheapest
    from triage.attribution.bisector import bisect
    from triage.attribution.cause import attributed
    from triage.attribution.explain import explain
    from triage.report.reproducer import DEATHS

    result = ablation.result
    ends = result.verdict in DEATHS or result.verdict is Verdict.TIMEOUT
    trials.repeat = 2 if result.verdict is Verdict.NONDETERMINISTIC else 1
    bisection = None if ends or result.verdict is Verdict.EAGER_SUSPECT else bisect(repro, python)
    attribution = attributed(entry, trials, bisection, ablation)
    if ends or not seconds:
        return attribution, None
    base = cheapest(ablation, entry)
    shown = ablation.stages[PASSES] if ablation.fails(PASSES) else result
    rewrite = "sfdp" in attribution.cause.part
    return attribution, explain(entry.case, shown, lambda case: trials.judge(case, base), seconds, rewrite=rewrite)


def _say(text: str) -> None:
    import sys

    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _prepare(out: Path) -> None:
    """Find out before the work, not after it, that nothing can be written there."""
    import tempfile

    from generators.errors import UserError

    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UserError(f"--out {out}: can't be written to: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    from generators.errors import UserError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from error


if __name__ == "__main__":
    enter(report, "triage.report")
