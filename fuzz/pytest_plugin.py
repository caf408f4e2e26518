"""A pytest plugin: each `*.case.yaml` is a test that replays the case in a worker. torch is not imported here.

In the checkout `pytest corpus` loads the plugin; elsewhere `python -m pytest -p fuzz.pytest_plugin PATH`.

    replay (fuzz/replay_result.py)           test
    as expected                              passes
    a known bug still shows                  xfail, with its URL
    a known bug no longer shows              fails
    anything else is not as expected         fails
    no subject takes the case, no device     skip
    the compiler is switched off             pytest ends, exit code 2
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from corpus.entry import CASE_SUFFIX, Entry, load
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.transport import CompilersOff
from fuzz.ask.worker_config import WorkerConfig, list_named
from fuzz.cli import USAGE, escape_controls
from fuzz.commands import require_allowed
from fuzz.protocol import Result
from fuzz.replay_result import State, describe_result, replay_entry
from generators.errors import UserError

_EVALUATOR = pytest.StashKey[Evaluator]()
_REFUSALS = pytest.StashKey[dict[str, str]]()
"""By device, why there is no worker for it: a start takes seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnfuzz", "replay of *.case.yaml")
    python = "interpreter, and so torch version, of the workers"
    group.addoption("--case-python", default=sys.executable, metavar="PYTHON", help=python)
    subject = "replay under this subject instead of the case's own; may be repeated"
    group.addoption("--case-subject", action="append", default=[], metavar="SUBJECT", help=subject)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _EVALUATOR in config.stash:
        config.stash[_EVALUATOR].close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "CaseFile | None":
    return CaseFile.from_parent(parent, path=file_path) if file_path.name.endswith(CASE_SUFFIX) else None


class CaseFile(pytest.File):
    """A case file, which is a single test."""

    def collect(self) -> Iterable["CaseItem"]:
        """The test, named after its subjects. A broken file is a collection error of one line."""
        try:
            entry = load(self.path)
        except UserError as error:
            raise self.CollectError(escape_controls(str(error))) from error
        subjects = tuple(self.config.getoption("case_subject")) or (entry.subject,)
        yield CaseItem.from_parent(self, name=escape_controls(",".join(subjects)), entry=entry, subjects=subjects)


class CaseItem(pytest.Item):
    """The replay of a case."""

    def __init__(self, *, entry: Entry, subjects: tuple[str, ...], name: str, parent: CaseFile) -> None:
        super().__init__(name, parent)
        self.entry = entry
        self.subjects = subjects

    def runtest(self) -> None:
        """Replay; pass, skip, xfail or fail as the module's docstring says."""
        evaluator = _open_evaluator(self.config)
        for subject in self.subjects:
            require_allowed(subject, evaluator.config.named, "the case", option="--case-subject")
        device, refusals = self.entry.device, self.config.stash.setdefault(_REFUSALS, {})
        if device not in ("cpu", *refusals):
            try:
                evaluator.on(device).process.start()
            except UserError as error:
                refusals[device] = escape_controls(str(error))
        if device in refusals:
            pytest.skip(refusals[device])
        try:
            replayed = replay_entry(evaluator, self.entry, self.subjects)
        except CompilersOff as error:
            pytest.exit(escape_controls(str(error)), returncode=USAGE)
        self._record(replayed.result)
        reason = escape_controls(replayed.reason)
        if replayed.state is State.SKIPPED:
            pytest.skip(reason)
        if replayed.state is State.STILL:
            pytest.xfail(reason)
        # With --runxfail `pytest.xfail` does nothing: a known bug fails here.
        if replayed.state is not State.MET:
            raise UserError(reason)

    def _record(self, result: Result) -> None:
        lines = describe_result(result, self.entry.case)
        self.add_report_section("call", "verdict", escape_controls("\n".join(lines)))
        for judged in result.results:
            self.user_properties.append((f"{judged.subject} verdict", judged.verdict.value))
            self.user_properties += [(f"{judged.subject} {key}", value) for key, value in judged.numbers.items()]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """A single line for an error that a user can mend, else a traceback."""
        if isinstance(excinfo.value, UserError):
            return escape_controls(str(excinfo.value))
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}: {self.name}"


def _open_evaluator(config: pytest.Config) -> Evaluator:
    if _EVALUATOR not in config.stash:
        worker = WorkerConfig(
            python=config.getoption("case_python"),
            named=list_named(config.getoption("case_subject")),
            timeout=180.0,
            memory_mib=8192,
        )
        # torch's own cache helps, since the same cases are replayed again and again.
        config.stash[_EVALUATOR] = open_evaluator(worker, own_cache=False)
    return config.stash[_EVALUATOR]
