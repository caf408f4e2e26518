"""Root causes of many findings.

Every cause is stored beside its run at once, so that no work is lost or done twice.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.causes import CauseKey, MechanismKind, Stage, details
from corpus.entry import Entry
from corpus.files import read_file, replace_file
from fuzz.commands import require_allowed
from fuzz.evaluator import Evaluator, open_evaluator
from fuzz.protocol import EAGER, Verdict
from fuzz.subjects import compiler_of, is_user_function
from fuzz.worker_config import WorkerConfig
from fuzz.worker_process import WorkerFault
from generators.errors import UserError
from generators.records import decode, encode
from triage import script_runs
from triage.attribution.attribute import attribute
from triage.attribution.root_cause import RootCause
from triage.cluster.findings import Finding

FORMAT = 2
"""Of stored causes."""
DIRECTORY = "attributions"
_MAX_BYTES = 1 << 20
LOOSE = Path("runs")
"""The causes of findings without a run are stored here."""

Attributor = Callable[[Entry], RootCause]
"""Finds the cause of a finding. Raises UserError where it can't, with the reason."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """A finding with the key of its cause."""

    finding: Finding
    key: CauseKey
    cause: RootCause | None = None
    why_open: str = ""
    """Why the cause is not known; "" where it is."""

    @property
    def is_open(self) -> bool:
        """Whether the cause is not known."""
        return self.key.stage is Stage.OPEN


def attribute_findings(
    findings: Sequence[Finding], config: WorkerConfig, allowed: Collection[str] = (), device: str = ""
) -> Generator[Attributed]:
    """Each finding with its cause under the torch of `config`: read where it is stored, else found and stored. Progress
    goes to stderr.

    `allowed`: functions of the user's that may be imported; `device`: to judge on, "" for that of each finding.
    """
    if not findings:
        return
    torch = script_runs.version("torch", config.python)
    paths = [_directory(one) / f"{_name(one)}-{torch}-{device or one.entry.device}.json" for one in findings]
    missing = [path for path in paths if _read(path) is None]
    with attributor(config, device) as find_cause:
        for finding, path in zip(findings, paths, strict=True):
            cause = _read(path)
            if cause is None:
                told = f"{finding.entry.expectation.verdict} under {finding.entry.subject}, {finding.path}"
                sys.stderr.write(f"attributing {missing.index(path) + 1} of {len(missing)}: {told}\n")
                try:
                    require_allowed(finding.entry.subject, allowed, "it")
                    cause = find_cause(finding.entry)
                except (UserError, WorkerFault) as error:
                    yield _leave_open(finding, " ".join(str(error).split()))
                    continue
                replace_file(path, json.dumps({"format": FORMAT, **encode(cause)}, indent=1).encode())
            yield Attributed(finding, cause.key, cause)


@contextmanager
def attributor(config: WorkerConfig, device: str = "") -> Iterator[Attributor]:
    """Attributes with a worker for each device and function of the user's. `device`: to judge on, "" for the device of
    each finding."""
    with ExitStack() as stack:
        evaluators: dict[tuple[WorkerConfig, int], Evaluator] = {}

        def find_cause(entry: Entry) -> RootCause:
            named = (entry.subject,) if is_user_function(entry.subject) else ()
            own = replace(config, device=device or entry.device, named=named)
            verdict = entry.found.verdict if entry.found else entry.expectation.verdict
            repeat = 2 if verdict == Verdict.NONDETERMINISTIC else 1
            if (own, repeat) not in evaluators:
                evaluators[own, repeat] = stack.enter_context(open_evaluator(own, repeat=repeat, remember=True))
            return attribute(entry, evaluators[own, repeat])

        yield find_cause


def load_attributed(findings: Iterable[Finding]) -> Iterator[Attributed]:
    """Each finding with its stored cause, under any torch version, best for its own device. Runs nothing."""
    for finding in findings:
        own = f"-{finding.entry.device}.json"
        files = sorted(_directory(finding).glob(f"{_name(finding)}-*.json"), reverse=True)
        files.sort(key=lambda file: not file.name.endswith(own))
        cause = next(filter(None, map(_read, files)), None)
        if cause is None:
            yield _leave_open(finding, "python -m triage.cluster was not run on it")
        else:
            yield Attributed(finding, cause.key, cause)


def _leave_open(finding: Finding, why: str) -> Attributed:
    entry = finding.entry
    who = EAGER if entry.verdict == Verdict.EAGER_SUSPECT else compiler_of(entry.subject)
    patterns = "+".join(sorted(name for name in entry.found.fired if "sfdp" in name)) if entry.found else ""
    kind = MechanismKind(entry.verdict or MechanismKind.FAILS)
    key = CauseKey(who, Stage.OPEN, patterns, kind, details(case=entry.case.id))
    return Attributed(finding, key, why_open=why)


def _directory(finding: Finding) -> Path:
    return (finding.run or LOOSE) / DIRECTORY


def _name(finding: Finding) -> str:
    return re.sub(r"[^\w.+-]", "_", f"{finding.id}-{finding.entry.subject}")


def _read(path: Path) -> RootCause | None:
    """A stored cause; None if the file holds none in this format, so that it is found again."""
    try:
        data = json.loads(read_file(path, _MAX_BYTES))
        return decode(RootCause, data) if isinstance(data, dict) and data.get("format") == FORMAT else None
    except (UserError, ValueError, RecursionError):
        return None
