"""From a case to its report: run it again, reproduce it, find its cause and conditions, write report.md."""

import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from corpus.causes import Project, find_project
from corpus.entry import Entry, Expectation, load, write
from corpus.files import replace_file, require_writable
from corpus.ledger import Bug, Ledger
from corpus.value_files import list_files
from corpus.versions import TORCH
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache, Asker, Question
from fuzz.ask.worker_config import ROOT, WorkerConfig
from fuzz.attribution.ablation import DYNAMIC, Ablation, run_ablation
from fuzz.attribution.attribute import attribute
from fuzz.attribution.locate import locate
from fuzz.attribution.root_cause import RootCause, describe_evidence
from fuzz.attribution.study import Study, subject_of
from fuzz.commands import REPORTS, require_allowed
from fuzz.error_location import describe_where, describe_with_names
from fuzz.experiments import DECOMPOSED
from fuzz.protocol import SubjectResult, Verdict
from fuzz.replay_result import describe_details
from fuzz.run_store import RESULTS_FILE
from fuzz.subjects import get_spec, is_attention, is_user_function, list_packages
from fuzz.versions import public_version, spell_verdict
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import source
from triage import script_runs
from triage.cluster.clusters import load_clusters
from triage.listed import find_regression, list_bugs
from triage.rendering import render
from triage.report import runtimes
from triage.report.conditions import find_conditions
from triage.report.failing_run import CASE_FILE, WITHOUT_NUMBERS, FailingRun, find_function
from triage.report.filing import advise, describe_releases, describe_upstream, render_facts
from triage.report.owners import find_owner
from triage.report.progress import tell_progress
from triage.report.regression import CANT_RUN, FILE, RegressionScript, write_case
from triage.report.rules import Condition
from triage.report.stages import list_stages, run_symbolic
from triage.report.wording import (
    describe_cause,
    describe_fault,
    describe_place,
    describe_unmended,
    link_source,
    quote_source,
    refuse,
    summarize,
    title,
    warn,
)
from triage.script_runs import TIMEOUT_EXIT, ScriptRuns, shorten_log

_CAUSE_SECONDS = 60.0
"""After these seconds no experiment on the cause begins, and the report names those that are left."""
_LEAST_SHARE = 0.33
"""Experiments on the cause leave at least this share of the time of `--explain`."""


class NothingToReport(Exception):
    """A case is no bug to report. The text gives the reason, in lines."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of the experiments on a finding."""

    run: CompletedProcess[str] | None  # of test_regression.py; None if only a worker shows the finding
    cause: RootCause | None = None
    conditions: tuple[Condition, ...] = ()
    eager: tuple[str, str] = ("", "")  # a person's script without a compiler, and the line by which it ends
    environment: str = ""
    is_cut: bool = False  # the time for the search for conditions was over
    model: dict[str, Any] = field(
        default_factory=dict
    )  # the script without torch, its files and output; empty without one


def find_cases(what: Path, ledger: Ledger) -> list[tuple[str, Path]]:
    """(name, case file) of each report; name: a directory below --out, or "". Raises UserError."""
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
    if not bug.cases:
        raise UserError(f"{ledger.path}: {bug.id} has no example to report about")
    return [("", next(one.example for one in list_bugs(ledger) if one.bug is bug))]


def report_case(
    path: Path, out: Path, config: WorkerConfig, chosen: str | None, seconds: float, bugs: Ledger, overwrite: bool
) -> list[str]:
    """Write the report about a case file, or delete an earlier report if the case is no bug. Gives lines for the user.

    `chosen`: the attention function to report about, if not the case's own. Raises UserError.
    """
    entry = load(path)
    subject = chosen or (entry.subject if is_attention(entry.subject) else None)
    if subject is not None:
        require_allowed(subject, config.named, str(path))
    if subject is not None and not is_attention(subject):
        raise UserError(f"subject {subject!r} is not an attention function; omit --subject for torch.compile")
    config = replace(config, device=config.device or entry.device, named=())
    file, script = out / "report.md", out / FILE
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists and may have your edits; use another --out, or --overwrite")
    require_writable(out, "--out")
    known = None if chosen else bugs.find_case(entry.case.id)
    try:
        made = build(entry, config, out, subject=subject, explain_seconds=seconds, known=known)
    except NothingToReport as why:
        # Files of an earlier report would seem to belong to this case.
        for old in (file, script, *(out / name for name in (CASE_FILE, *runtimes.FILES))):
            old.unlink(missing_ok=True)
        return [f"{path}: {why}"]
    file.write_text(render("report.md.j2", report=made), encoding="utf-8")
    files = (file, script, out / runtimes.MODEL_SCRIPT)
    return [made["title"], *(f"  {written}" for written in files if written.exists())]


def build(
    entry: Entry,
    config: WorkerConfig,
    out: Path,
    *,
    subject: str | None = None,
    explain_seconds: float = 60.0,
    known: Bug | None = None,
) -> dict[str, Any]:
    """The values of report.md.j2 for a case. Writes test_regression.py into `out`.

    `subject`: the attention function to report about. Raises NothingToReport. Raises UserError when eager refuses the
    case, the subject computes no attention, or the script can't run.
    """
    if subject is not None:
        entry = replace(entry, expect=Expectation("pass", subject=subject, device=config.device))
        config = replace(config, named=(subject,) if is_user_function(subject) else ())
    with (
        open_evaluator(config) as evaluator,
        ScriptRuns(config.python, 3 * config.timeout, evaluator.config.cache) as scripts,
        tell_progress(evaluator, scripts),
    ):
        what = "in eager, by each part of the compiler, and with parts off" if subject is None else f"under {subject}"
        sys.stderr.write(f"torch {evaluator.hello.torch}: running the case {what}\n")
        memory = AnswerCache(evaluator)
        ablation = run_ablation(entry, memory)
        run_symbolic(entry.case, ablation, memory)
        if why := refuse(ablation):
            raise NothingToReport(describe_refusal(entry.case, ablation, why))
        sys.stderr.write(f"{ablation.result.verdict} with {ablation.accused}\n")
        name = known.title if known else title(entry.case, ablation.result, config.device)
        # The further runs of a report compare no two runs of a deterministic program.
        is_compared = is_attention(ablation.accused) or ablation.result.verdict is Verdict.NONDETERMINISTIC
        evaluator.repeat = 2 if is_compared else 1
        evidence = _investigate(entry, ablation, memory, scripts, out, explain_seconds, name, known)
    if evidence is None:
        why = f"A worker saw {ablation.result.verdict}, but {FILE}, run in a process of its own, does not show it."
        raise NothingToReport(describe_refusal(entry.case, ablation, why))
    return write_report(entry, ablation, evidence, known)


def _run_eager(known: Bug | None, scripts: ScriptRuns) -> tuple[str, str]:
    """A person's script that shows a bug without compiling, and the line by which it ends; "" for both without one."""
    script = REPORTS / known.id / "eager.py" if known else None
    eager = script.read_text(encoding="utf-8") if script and script.is_file() else ""
    alone = scripts.run(eager) if eager else None
    raised = alone.stderr.strip().rpartition("\n")[2] if alone is not None and alone.returncode else ""
    return (eager.strip(), raised) if raised else ("", "")


def _script(entry: Entry, ablation: Ablation, name: str) -> RegressionScript:
    is_dynamic, own_random = ablation.accused == DYNAMIC, get_spec(entry.subject).random
    return write_case(FailingRun(entry.case, ablation.result, name, ablation.hello.device, is_dynamic, own_random))


def write_report(entry: Entry, ablation: Ablation, evidence: Evidence, known: Bug | None = None) -> dict[str, Any]:
    """The values of report.md.j2 for the accused stage of the ablation. `known`: its entry in the ledger."""
    case, result, cause, run = entry.case, ablation.result, evidence.cause, evidence.run
    torch = public_version(ablation.hello.torch)
    name = known.title if known else title(case, result, ablation.hello.device, cause)
    judged, script = _record(entry, ablation), _script(entry, ablation, name)
    bug, fault = script.bug, known.fault if known else None
    quoted = fault if fault and fault.torch == torch else next(iter(cause.places if cause else ()), None)
    places, project = cause.places if cause else (), find_project(cause.who if cause else "")
    table = list_stages(case, ablation)
    return {
        "title": name,
        "warning": warn(result.verdict),
        "facts": render_facts(name, judged, cause.key if cause else None, known),
        "releases": describe_releases(judged) if len(judged.seen) > 1 else "",
        "upstream": bug.who != "kernel" or bool(bug.spec.sdpa),
        "project": project.label if project is not Project.PYTORCH else "",
        "form": _list_form(ablation, project, judged, evidence, known),
        "runtime": list_packages(result.subject)[:1],
        "model": evidence.model,
        "summary": summarize(case, ablation, has_numbers=run is None),
        "cause": describe_cause(cause, fault) if cause else "",
        "advice": advise(known),
        "note": link_source(known.note, torch) if known else "",
        "evidence": describe_evidence(cause, ablation.stages) if cause else [],
        "places": [describe_place(one, torch) for one in places],
        "fault": describe_fault(fault) if fault else "",
        "source": quote_source(quoted, ablation.hello.home) if quoted else "",
        "eager": evidence.eager[0],
        "eager_error": evidence.eager[1],
        "is_sequence": bool(case.calls),
        "replay": bug.replay,
        "commands": list_commands(bug, ablation),
        "owner": find_owner(case, cause.key, fault) if cause and not find_function(bug) else None,
        "reads_files": bool([*list_files(case)]),
        "place": find_function(bug).partition(":")[0],
        "table": table if len({verdict for _, verdict in table}) > 1 else [],
        "conditions": evidence.conditions,
        "is_cut": evidence.is_cut,
        "where": describe_where(case, result.where),
        "environment": evidence.environment,
        **_show_run(script, run),
        **_show_fix(known),
    }


def _show_run(script: RegressionScript, run: CompletedProcess[str] | None) -> dict[str, Any]:
    """The values about the script, and about its run if it shows the finding."""
    result = script.bug.result
    # The program has the dense call, from which the worker makes packed and paged calls.
    is_packed = bool(result.failure and result.failure.sequences)
    shown = {"program": source(script.bug.case).strip() if is_packed else script.program}
    if run is None:
        return shown | {"body": "", "exit_code": "", "output": ""}
    is_log = result.verdict in WITHOUT_NUMBERS
    return {
        **shown,
        "body": "\n".join(script.body),
        "exit_code": "timed out" if run.returncode == TIMEOUT_EXIT else str(run.returncode),
        "output": shorten_log(run.stderr) if is_log else run.stdout.strip(),
        "is_log": is_log,
    }


def _show_fix(known: Bug | None) -> dict[str, Any]:
    """The values about a patch that holds, by the answer of `triage.verify_fix`."""
    answer = REPORTS / known.id / "fix.json" if known else None
    fix: dict[str, Any] = json.loads(answer.read_text()) if answer and answer.is_file() else {"holds": False}
    if not fix["holds"]:
        return {"fix": None}
    unmended = describe_unmended(fix["cases"] - fix["passing"], fix.get("failing", {}))
    return {"fix": fix, "unmended": unmended, "n_fixed": [*fix["examples"].values()].count("fixed")}


def describe_refusal(case: Case, ablation: Ablation, why: str) -> str:
    """The reason for no report, and the verdict of every stage, in lines."""
    result = ablation.result
    lines = [why, describe_with_names(case, result), *describe_details(result, describe_where(case, result.where))]
    lines += [f"{way}: {verdict}" for way, verdict in list_stages(case, ablation)]
    return "\n  ".join([f"not a bug to report: {result.verdict}", *filter(None, lines)])


def list_commands(bug: FailingRun, ablation: Ablation) -> list[str]:
    """Commands that run the script: as it is, with the last compiler that passes, and under torch's bisector."""
    commands = [f"python {FILE}"]
    # Other compilers refuse the options of Inductor.
    if bug.who != "compiled" or bug.spec.is_exported or bug.spec.sharded or bug.settings:
        return commands
    passing = [get_spec(one.subject).backend for one in ablation.stages.values() if one.verdict.clears]
    known = [name for name in passing if name in ("eager", "aot_eager", DECOMPOSED)]
    commands += [f"TORCH_BISECT_BACKEND={name} python {FILE}    # passes" for name in known[-1:]]
    bisect = f"python -m torch._inductor.compiler_bisector run python {FILE}"
    return commands + [bisect] * (bug.spec.backend == "inductor" and bool(known))


def _investigate(
    entry: Entry,
    ablation: Ablation,
    asker: Asker,
    scripts: ScriptRuns,
    out: Path,
    seconds: float,
    name: str,
    known: Bug | None,
) -> Evidence | None:
    """Run the script, and look for the cause. None if it is a bug of torch that the script does not show.

    Also writes the script, and the case file that the report names. Scripts run beside the experiments.
    """
    result, config, is_kernel = ablation.result, asker.config, is_attention(ablation.accused)
    script, began = _script(entry, ablation, name), time.monotonic()
    (out / FILE).unlink(missing_ok=True)
    importable = (str(ROOT), str(Path.cwd())) if is_kernel else ()
    running = scripts.submit(FILE, scripts.run, script.write(), importable) if script.is_possible else None
    environment = scripts.submit("collect_env", script_runs.collect, config.python, ablation.hello.torch)
    eager = scripts.submit("eager.py", _run_eager, known, scripts)
    sys.stderr.write(f"running {FILE}; looking for the cause: one change at a time, at most {_CAUSE_SECONDS:.0f} s\n")
    cause = attribute(entry, asker, ablation, deadline=began + _CAUSE_SECONDS)
    conditions, is_cut = tuple[Condition, ...](), False
    is_lost = result.verdict.is_lost  # each experiment costs a worker
    if seconds and not (is_lost and not is_kernel):
        left = max(seconds - (time.monotonic() - began), seconds * _LEAST_SHARE)
        cause, conditions, is_cut = _explain(entry, ablation, asker, cause, left)
    if known and (decided := replace(cause, who=known.cause.who)).key in known.causes:
        cause = decided  # as a person decided
    sys.stderr.write("waiting for the last scripts\n")
    run = running.result() if running is not None else None
    if run is not None and run.returncode == CANT_RUN and not is_kernel:
        raise UserError(f"{FILE} does not run under {config.python}: {run.stderr.strip()[-200:]}")
    run = None if run is None or run.returncode in (0, CANT_RUN) else run
    if run:
        named = _script(entry, ablation, known.title if known else title(entry.case, result, config.device, cause))
        test, fault = (known.id, known.fault) if known else ("regression", None)
        replace_file(out / FILE, named.write(cause.key, name=test, fault=fault).encode())
    elif running is not None and not is_kernel:
        return None
    model = _save_model(script, cause, scripts, out) if run else {}
    write(Entry(entry.case, expect=Expectation("pass", subject=result.subject, device=config.device)), out / CASE_FILE)
    return Evidence(run, cause, conditions, eager.result(), environment.result(), is_cut, model)


def _save_model(script: RegressionScript, cause: RootCause, scripts: ScriptRuns, out: Path) -> dict[str, Any]:
    """Write the files that show a bug of a runtime without torch. Their names, and the output of the script."""
    bug = script.bug
    if not runtimes.has_model(bug, cause.key):
        return {}
    text, names = runtimes.write_reproduction(bug), runtimes.list_files(bug)
    saved = scripts.run(runtimes.write_saving(bug, script.program, script.exact), keep=(out, names))
    done = scripts.run(text, beside=[out / name for name in names])
    if saved.returncode or done.returncode != 1:
        return {}
    replace_file(out / runtimes.MODEL_SCRIPT, text.encode())
    return {"script": runtimes.MODEL_SCRIPT, "files": names, "output": done.stdout.strip()}


def _list_form(
    ablation: Ablation, project: Project, judged: Entry, evidence: Evidence, known: Bug | None
) -> list[tuple[str, str]]:
    """The fields of the form of another project."""
    change, model = find_regression(judged), evidence.model
    facts = {
        "urgency": "a regression: last good {}, first bad {}".format(*change) if change else "none known",
        "model": f"{model['files'][0]}, beside this file" if model else f"the module in {FILE}",
        "upstream": describe_upstream(known),
        "files": ", ".join([model["script"], *model["files"]] if model else [FILE]),
    }
    return runtimes.find_form(project).fill(ablation.hello.packages.get(project.package, ""), facts)


def _explain(
    entry: Entry, ablation: Ablation, asker: Asker, cause: RootCause, seconds: float
) -> tuple[RootCause, tuple[Condition, ...], bool]:
    """The cause with its places, the conditions, and whether the time cut their search short."""
    result, is_kernel, began = ablation.result, is_attention(ablation.accused), time.monotonic()
    cause = locate(Study(asker, entry, ablation.accused, result), cause)
    left = max(0.0, began + seconds - time.monotonic())
    sys.stderr.write(f"looking for the conditions: one property varied at a time, at most {left:.0f} s\n")
    base, shown = subject_of(ablation.cheapest, entry), ablation.stages[ablation.cheapest]

    def run(case: Case) -> SubjectResult:
        is_other = is_kernel and emit_attention_stub(case) is None
        return SubjectResult(base, Verdict.SKIPPED) if is_other else asker.ask(Question(case, (base,))).only

    is_pattern = cause.is_attention_pattern
    found = find_conditions(entry.case, shown, run, left, rewrite=is_pattern, sizes_only=is_kernel)
    return cause, tuple(found), time.monotonic() - began >= seconds


def _record(entry: Entry, ablation: Ablation) -> Entry:
    """The entry with the verdicts of all versions of torch that judged it, and as it fails in this one."""
    result, found = ablation.result, entry.found
    told = {TORCH: found.torch, **found.versions} if found else {}
    seen = dict(entry.seen) | ({entry.spell_version(told): found.verdict} if found else {})
    seen[entry.spell_version(ablation.hello.packages)] = spell_verdict(result)
    versions, device = entry.expectation.versions, ablation.hello.device
    expect = Expectation("known", "", versions, subject=result.subject, verdict=result.verdict, device=device)
    return replace(entry, expect=expect, found=None, seen=seen)
