"""Turn a case into a report, for PyTorch or for a kernel's author: `python -m triage.report CASE --out DIR`. Nothing is ever sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.door import enter

if TYPE_CHECKING:
    from corpus.entry import Entry
    from fuzz.campaign.pool import Setup
    from triage.draft import Draft


def report(
    case: Path,
    *,
    out: Path,
    subject: str | None = None,
    python: str | None = None,
    device: str | None = None,
    timeout: str = "120s",
    memory: int = 8192,
    overwrite: bool = False,
) -> None:
    """Write report.md, the draft of an issue, and repro.py, one file that needs torch alone, for a case.

    The case is judged again, under every backend from eager to Inductor, and repro.py is run. What is no bug of
    torch.compile (rounding, an unstable program, NaN by design, casts elided by design, a difference that PyTorch's
    own check accepts) gets a report.md that says why, and no issue; the exit code is 0 then too.

    A case about an attention function gets what its author needs instead: the call, the sizes that fail, and a
    repro.py that imports the function.

    Parameters
    ----------
    case
        A case file.
    out
        Directory for report.md and repro.py; made if need be.
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
    overwrite
        Replace a report.md that is there, with whatever was written into it.
    """
    import sys

    from corpus.entry import DEVICES, load
    from fuzz.campaign.budget import duration
    from fuzz.campaign.pool import Setup
    from fuzz.catalogue import is_named, kind
    from generators.errors import UserError
    from triage import kernel
    from triage.draft import commands
    from triage.kernel_repro import sdpa_backend

    entry = load(case)
    attention = subject or (entry.subject if is_named(entry.subject) or kind(entry.subject).attention else None)
    if attention is not None and is_named(attention) and subject is None:
        # A case file is data: that it names a function is no reason to import it.
        raise UserError(f"{case}: is about {attention}, which runs code of yours: allow it with --subject {attention}")
    if attention is not None and not is_named(attention) and not kind(attention).attention:
        raise UserError(f"subject {attention!r} is not an attention function; leave --subject out for torch.compile")
    device = device or entry.device
    if device not in DEVICES:
        raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    setup = Setup(python or sys.executable, device, timeout=duration(timeout, "timeout"), memory_mib=memory)
    file = out / "report.md"
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists and may hold your words; give another --out, or --overwrite")
    _prepare(out)
    draft = _draft(entry, setup, out) if attention is None else kernel.draft(entry, attention, setup, out)
    _write(file, draft.text)
    lines = [draft.title, f"  {file}"]
    if draft.is_issue:
        lines += [f"  {out / 'repro.py'}"]
    if draft.is_issue and (attention is None or sdpa_backend(attention)):
        lines += ["Nothing was sent. Read it, say in your own words where you met it, and then:"]
        lines += [f"  {command}" for command in commands(draft, str(file))]
    print("\n".join(lines))  # noqa: T201 - a command line prints its result


def _draft(entry: "Entry", setup: "Setup", out: Path) -> "Draft":
    from generators.errors import UserError
    from triage import environment, reproducer
    from triage.attribute import accepted, refusal
    from triage.draft import issue, refused
    from triage.ladder import DYNAMIC, climb
    from triage.title import title
    from triage.versions import seen_in

    ladder = climb(entry, setup)
    why = refusal(ladder)
    if why is not None:
        (out / "repro.py").unlink(missing_ok=True)  # one of an earlier report would seem to belong to this one
        return refused(entry.case, ladder, why)
    verdict = ladder.result.verdict
    text = reproducer.text(
        entry.case,
        verdict,
        title(entry.case, ladder.result, setup.device),
        device=setup.device,
        dynamic=ladder.accused == DYNAMIC,
        seconds=setup.timeout,
        memory_mib=setup.memory_mib,
    )
    _write(out / "repro.py", text)
    run = reproducer.run(out / "repro.py", setup.python, seconds=3 * setup.timeout)
    if run.code == reproducer.CANT_RUN:
        raise UserError(f"{out / 'repro.py'} does not run under {setup.python}: {run.log.strip()[-200:]}")
    if run.code == 0:
        return refused(entry.case, ladder, accepted(ladder))
    return issue(entry.case, ladder, run, environment.collect(setup.python, ladder.hello.torch), seen_in(entry, ladder))


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
