"""From a case to its report: judge it again, reproduce it, find the cause and the conditions, put it together."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.causes import Stage
from corpus.entry import Entry, Expectation, load, sort_by_version, write
from corpus.files import replace_file, require_writable
from fuzz.commands import require_allowed
from fuzz.error_location import describe_where, describe_with_names
from fuzz.evaluator import PASSING, Evaluator, open_evaluator, public_version
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DeviceError, FormDiffers
from fuzz.replay_result import describe_details
from fuzz.run_store import RESULTS_FILE
from fuzz.subjects import get_spec, is_user_function
from fuzz.versions import spell_verdict
from fuzz.worker_config import ROOT, WorkerConfig
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import source
from generators.program.settings import SETTINGS
from triage import script_runs
from triage.attribution.ablation import (
    DYNAMIC,
    EAGER,
    PASSES,
    Ablation,
    find_cheapest,
    is_attention,
    label,
    run_ablation,
)
from triage.attribution.attribute import attribute
from triage.attribution.explain import explain
from triage.attribution.root_cause import RootCause, describe_evidence
from triage.cluster.clusters import load_clusters
from triage.rendering import render
from triage.report import repro
from triage.report.repro import CASE_FILE, WITHOUT_NUMBERS, Bug
from triage.report.wording import describe_cause, name_operands, quote, refuse, summarize, title
from triage.script_runs import TIMEOUT_EXIT, Run, shorten_log

_AT_FAULT = {Verdict.EAGER_SUSPECT: "eager", Verdict.STATE_CHANGED: "state"}
_CELLS: dict[str, str] = {
    Verdict.ROUNDING: "ok",
    Verdict.EAGER_SUSPECT: "eager is wrong",
    Verdict.NONFINITE: "NaN or infinity",
    Verdict.METADATA: "other metadata",
}
"""Words for verdicts whose own names say less."""
_SIZE_TIMEOUT = 20.0
"""Seconds for one case with another size."""


class NothingToReport(Exception):
    """A case is no bug to report. The text gives the reason, in lines."""


@dataclass(frozen=True, slots=True)
class Report:
    """The content of report.md."""

    title: str
    values: Mapping[str, Any]  # of the template

    def render(self) -> str:
        """The text of report.md."""
        return render("report.md.j2", title=self.title, report=self.values)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of the experiments on a finding."""

    run: Run | None  # of repro.py; None where only a worker shows the finding
    cause: RootCause | None = None
    conditions: tuple[str, ...] = ()


def find_cases(what: Path, ledger: ledgers.Ledger) -> list[tuple[str, Path]]:
    """The case files to report about, and for those of a run the directory's name below --out. Raises UserError."""
    if (what / RESULTS_FILE).is_file():
        clusters = load_clusters([what], ledger)
        if not clusters:
            raise UserError(f"{what}: this run found nothing to report")
        return [(one.bug.id if one.bug else one.example.id, one.example.path) for one in clusters]
    if what.exists():
        return [("", what)]
    bug = next((bug for bug in ledger.bugs if bug.id == str(what)), None)
    if bug is None:
        raise UserError(f"{what}: not a case file, a run directory or an id in {ledger.path}")
    examples = ledger.examples(bug)
    if not examples:
        raise UserError(f"{ledger.path}: {bug.id} has no example to report about")
    return [("", examples[0])]


def report_case(
    case: Path,
    out: Path,
    config: WorkerConfig,
    chosen: str | None,
    explain_seconds: float,
    ledger: ledgers.Ledger,
    *,
    overwrite: bool,
) -> list[str]:
    """Write the report about a case file, or delete an earlier report of a case that is no bug; lines for the user.

    `chosen`: the attention function to report about, if not the case's own. Raises UserError.
    """
    entry = load(case)
    subject = chosen or (entry.subject if is_attention(entry.subject) else None)
    if subject is not None:
        require_allowed(subject, config.named, str(case))
    if subject is not None and not is_attention(subject):
        raise UserError(f"subject {subject!r} is not an attention function; omit --subject for torch.compile")
    config = replace(config, device=config.device or entry.device, named=())
    file = out / "report.md"
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists and may have your edits; use another --out, or --overwrite")
    require_writable(out, "--out")
    known = None if chosen else ledger.find_case(entry.case.id)
    try:
        made = build(entry, config, out, subject=subject, explain_seconds=explain_seconds, known=known)
    except NothingToReport as why:
        # Files of an earlier report would seem to belong to this case.
        for old in (file, out / "repro.py", out / CASE_FILE):
            old.unlink(missing_ok=True)
        return [f"{case}: {why}"]
    file.write_text(made.render(), encoding="utf-8")
    return [made.title, f"  {file}", f"  {out / 'repro.py'}"]


def build(
    entry: Entry,
    config: WorkerConfig,
    out: Path,
    *,
    subject: str | None = None,
    explain_seconds: float = 60.0,
    known: ledgers.Bug | None = None,
) -> Report:
    """The report about a case, with repro.py beside it in `out`.

    `config.device`: the device of the case
    `subject`: the attention function to report about, None for torch.compile and eager
    `explain_seconds`: time for the search for conditions of the failure
    `known`: the bug in the ledger

    Raises NothingToReport. Raises UserError when eager refuses the case, the subject computes no attention, or repro.py
    can't run.
    """
    if subject is not None:
        entry = replace(entry, expect=Expectation("pass", subject=subject, device=config.device))
        config = replace(config, named=(subject,) if is_user_function(subject) else ())
    with open_evaluator(config, repeat=2, remember=True) as evaluator:
        what = "in eager, by each part of the compiler, and with parts off" if subject is None else f"under {subject}"
        sys.stderr.write(f"torch {evaluator.hello.torch}: running the case {what}\n")
        ablation = run_ablation(entry, evaluator)
        if why := refuse(ablation):
            raise NothingToReport(describe_refusal(entry.case, ablation, why))
        sys.stderr.write(f"{ablation.result.verdict} with {ablation.accused}\n")
        name = known.title if known else title(entry.case, ablation.result, config.device)
        evidence = _investigate(entry, ablation, evaluator, out, explain_seconds, name)
    if evidence is None:
        why = f"A worker saw {ablation.result.verdict}, but repro.py, run in a process of its own, does not show it."
        raise NothingToReport(describe_refusal(entry.case, ablation, why))
    sys.stderr.write("writing the report\n")
    environment = script_runs.collect(config.python, ablation.hello.torch)
    made = write_report(entry, ablation, evidence, name=name, environment=environment, note=known.note if known else "")
    block = f"{made.values['program']}\n\n\n{made.values['run']}"
    raised = getattr(ablation.result.failure, "error", "") if ablation.result.verdict in WITHOUT_NUMBERS else ""
    error = "AssertionError" if repro.COMPARISON in block else raised
    is_tried = made.values["upstream"] and error != ""
    is_shown = not is_tried or error in script_runs.run_text(block, config.python, seconds=3 * config.timeout).log
    return made if is_shown else replace(made, values={**made.values, "run": ""})


def write_report(
    entry: Entry, ablation: Ablation, evidence: Evidence, *, name: str = "", environment: str = "", note: str = ""
) -> Report:
    """The report about the accused stage of the ablation. `note`: the ledger's text about the bug."""
    case, result, hello = entry.case, ablation.result, ablation.hello
    cause, run = evidence.cause, evidence.run
    cause = cause and name_operands(case, cause)
    kernel, accused = repro.is_kernel(result), get_spec(ablation.accused)
    # Packed and paged calls are made of the program's dense one.
    is_packed = kernel and bool(getattr(result.failure, "sequences", None))
    # The script shows writes and shared memory as values.
    is_form = getattr(result.failure, "aspect", "") in ("dtype", "shape", "device", "strides")
    spec = get_spec(result.subject)
    is_step = cause and cause.part and (cause.who == "inductor" or cause.stage is Stage.DECOMPOSITION)
    is_beyond_bisector = spec.recomputes or spec.is_exported or result.verdict is Verdict.STATE_CHANGED
    values = {
        "at_fault": "kernel" if kernel else "form" if is_form else _AT_FAULT.get(result.verdict, "compiled"),
        "upstream": not kernel or bool(accused.sdpa),
        "summary": summarize(case, ablation),
        "cause": describe_cause(ablation, cause) if cause else "",
        "note": note,
        "evidence": describe_evidence(cause, ablation.stages) if cause else [],
        "program": repro.spell_program(case, ablation.accused) if kernel and not is_packed else source(case).strip(),
        "settings": [(f"`{name}={value}`", SETTINGS[name].switches_on) for name, value in case.settings],
        "is_sequence": bool(case.calls),
        "replay": Bug(case=case, result=result).replay,
        "has_script": run is not None,
        "exit_code": "1" if run is None else "timed out" if run.code == TIMEOUT_EXIT else str(run.code),
        "output": run.output.strip() if run and result.verdict not in WITHOUT_NUMBERS else "",
        "log": shorten_log(run.log) if run and result.verdict in WITHOUT_NUMBERS else "",
        "can_bisect": is_step and not is_beyond_bisector,
        "run": "" if case.calls or is_packed else repro.spell_run(Bug(case=case, result=result, device=hello.device)),
        "place": repro.place_of(ablation.accused) if kernel else "",
        "table": list_stages(case, ablation),
        "conditions": evidence.conditions,
        "where": describe_where(case, result.where),
        "seen": _list_versions(entry, ablation),
        "environment": environment,
    }
    return Report(name or title(case, result, hello.device), values)


def describe_refusal(case: Case, ablation: Ablation, why: str) -> str:
    """The reason for no report, and the verdict of every stage, in lines."""
    result = ablation.result
    lines = [why, describe_with_names(case, result), *describe_details(result, describe_where(case, result.where))]
    lines += [f"{way}: {verdict}" for way, verdict in list_stages(case, ablation)]
    return "\n  ".join([f"not a bug to report: {result.verdict}", *filter(None, lines)])


def list_stages(case: Case, ablation: Ablation) -> list[tuple[str, str]]:
    """The rows of the report's table: the words for a stage, and its verdict."""
    as_config, is_kernel = repro.is_of_config(ablation.result), repro.is_kernel(ablation.result)
    return [
        (
            "eager, the attention as products and softmax"
            if is_kernel and name == EAGER
            else quote(label(name, one.subject, case, as_config=as_config)),
            f"other {one.failure.aspect}" if isinstance(one.failure, FormDiffers) else _spell(spell_verdict(one)),
        )
        for name, one in ablation.stages.items()
    ]


def _spell(verdict: str) -> str:
    """A verdict of a case file in words, such as "compile error (IndexError)"."""
    name, _, error = verdict.partition(" ")
    return _CELLS.get(name, name.replace("_", " ")) + (f" ({error})" if error else "")


def _investigate(
    entry: Entry, ablation: Ablation, evaluator: Evaluator, out: Path, seconds: float, name: str
) -> Evidence | None:
    """Write repro.py, run it, and look for the cause; None where the script of a torch bug does not show it.

    The report names the case file where only a worker shows the bug.
    """
    result, config = ablation.result, evaluator.config
    is_kernel = is_attention(ablation.accused)
    conditions = _explore_sizes(entry.case, ablation, config) if is_kernel else []
    bug = Bug(
        case=entry.case,
        result=result,
        title=name,
        device=config.device,
        dynamic=ablation.accused == DYNAMIC,
        own_random=get_spec(entry.subject).random,
    )
    script, run = repro.write_script(bug), None
    write(Entry(entry.case, expect=Expectation("pass", subject=result.subject, device=config.device)), out / CASE_FILE)
    if script:
        sys.stderr.write("running repro.py\n")
        replace_file(out / "repro.py", script.encode())
        run = _run_script(bug, config, out / "repro.py")
    if run is None:
        (out / "repro.py").unlink(missing_ok=True)
    if run is None and script and not is_kernel:
        (out / CASE_FILE).unlink()
        return None
    is_lost = result.verdict in repro.ENDS_PROCESS or result.verdict is Verdict.TIMEOUT
    evaluator.repeat = 2 if is_kernel or result.verdict is Verdict.NONDETERMINISTIC else 1
    sys.stderr.write("looking for the cause: experiments, one change in each; a minute or two\n")
    cause = attribute(entry, evaluator, ablation)
    if not is_lost and not is_kernel and seconds:
        sys.stderr.write(f"looking for the conditions: one property varied at a time, at most {seconds:.0f} s\n")
        base = find_cheapest(ablation, entry)
        conditions = explain(
            entry.case,
            ablation.stages[PASSES] if ablation.fails(PASSES) else result,
            lambda case: evaluator.judge(case, base),
            seconds,
            rewrite=cause.is_attention_pattern,
        )
    return Evidence(run, cause, tuple(conditions))


def _explore_sizes(case: Case, ablation: Ablation, config: WorkerConfig) -> list[str]:
    result = ablation.result
    sys.stderr.write("looking for the sizes that fail: one dimension varied at a time\n")
    limited = replace(config, timeout=min(config.timeout, _SIZE_TIMEOUT))
    repeat = 2 if result.verdict is Verdict.NONDETERMINISTIC else 1
    with open_evaluator(limited, repeat=repeat, remember=True) as evaluator:

        def judge(other: Case) -> SubjectResult:
            if emit_attention_stub(other) is None:
                return SubjectResult(ablation.accused, Verdict.SKIPPED)
            return evaluator.judge(other, ablation.accused)

        return explain(case, result, judge, sizes_only=True)


def _run_script(bug: Bug, config: WorkerConfig, file: Path) -> Run | None:
    """The run of the script; None where it does not show the bug. Raises UserError where it can't run."""
    is_kernel, failure = repro.is_kernel(bug.result), bug.result.failure
    importable = (str(ROOT), str(Path.cwd())) if is_kernel else ()
    run = script_runs.run(file, config.python, seconds=3 * config.timeout, importable=importable)
    if run.code == repro.CANT_RUN and not is_kernel:
        raise UserError(f"{file} does not run under {config.python}: {run.log.strip()[-200:]}")
    is_other = isinstance(failure, DeviceError) and failure.fault not in run.log
    is_told = bug.result.verdict in WITHOUT_NUMBERS or bool(run.output.strip())
    return run if run.code not in (0, repro.CANT_RUN) and is_told and not is_other else None


def _list_versions(entry: Entry, ablation: Ablation) -> str:
    """Versions of torch and their verdicts: "2.11.0: passes; 2.12.1, 2.13.0: compile error"; "" with one version."""
    seen = dict(entry.seen)
    seen |= {public_version(entry.found.torch): entry.found.verdict} if entry.found else {}
    seen[public_version(ablation.hello.torch)] = spell_verdict(ablation.result)
    told: dict[str, list[str]] = {}
    for version, said in sort_by_version(seen).items():
        told.setdefault("passes" if said in PASSING else _spell(said), []).append(version)
    return "; ".join(f"{', '.join(versions)}: {words}" for words, versions in told.items()) if len(seen) > 1 else ""
