"""`--share DIR`: independent campaigns exchange files in a directory that all of them see.

    queue/<case id>.case.yaml       cases with new coverage
    findings/<case id>.case.yaml    minimal, confirmed failures
    attributions/                   root causes (triage.cluster)

A file appears complete, under the id of its case, and never changes. A file that holds no such case is skipped.
"""

import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from corpus import entry as corpus_entry
from corpus import value_files
from corpus.entry import SUFFIX, Entry
from fuzz.events import Bus, Notice
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.case import Case

DIRECTORIES = QUEUE, FINDINGS, ATTRIBUTIONS = "queue", "findings", "attributions"
SCAN_SECONDS = 5.0
"""The pause between two scans for new files. On a slow file system it is 50 times the duration of a scan."""


class SharedFolder:
    """The directory, as a campaign sees it. Threads share it."""

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        """warn: gets a line for each skipped file and each failure of the file system. Neither ends a campaign."""
        self.directory, self._warn = directory.absolute(), warn
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: deque[Path] = deque()
        self._next = 0.0
        self._lock = threading.Lock()

    def publish(self, kind: str, entry: Entry) -> None:
        path = self.directory / kind / f"{entry.case.id}{SUFFIX}"
        with self._lock:
            self._seen[kind].add(path.name)
            try:
                if not path.exists():
                    value_files.copy_files(entry.case, path.parent)
                    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
                    temporary.write_text(corpus_entry.dumps(entry), encoding="utf-8")
                    temporary.replace(path)
            except (OSError, UserError) as error:
                self._warn(f"--share: {path}: not written: {getattr(error, 'strerror', error)}")

    def tick(self) -> bool:
        """Look for cases when it is time, and return whether it was time."""
        with self._lock:
            began = time.monotonic()
            if began < self._next:
                return False
            self._waiting.extend(self._list_new(QUEUE))
            self._next = began + max(SCAN_SECONDS, 50 * (time.monotonic() - began))
            return True

    def take_case(self) -> Case | None:
        """The next case with new coverage of another campaign, or None. Each case is given once."""
        with self._lock:
            while self._waiting:
                entry = self._read(self._waiting.popleft())
                if entry is not None:
                    return entry.case
        return None

    def take_findings(self) -> Iterator[tuple[Path, Entry]]:
        """The findings of other campaigns, each once."""
        with self._lock:
            paths = self._list_new(FINDINGS)
        for path in paths:
            entry = self._read(path)
            if entry is not None:
                yield path, entry

    def _list_new(self, kind: str) -> list[Path]:
        directory, seen = self.directory / kind, self._seen[kind]
        try:
            names = {path.name for path in directory.iterdir() if path.name.endswith(SUFFIX) and path.name[0] != "."}
        except OSError as error:
            self._warn(f"--share: {directory}: not read: {error.strerror}")
            return []
        new = sorted(names - seen)
        seen.update(new)
        return [directory / name for name in new]

    def _read(self, path: Path) -> Entry | None:
        try:
            return corpus_entry.load(path)
        except UserError as error:
            self._warn(f"--share: skipped {error}")
            return None


def open_share(directory: Path, results: Results, bus: Bus) -> SharedFolder:
    """The directory, for the campaign with these results. Publishes files that an earlier session could
    not write because it was killed."""
    with suppress(FileExistsError):
        (results.path.parent / ATTRIBUTIONS).symlink_to((directory / ATTRIBUTIONS).absolute())
    share = SharedFolder(directory, lambda text: bus.emit(Notice(text=text)))
    for case, _ in results.queue():
        share.publish(QUEUE, Entry(case))
    for row in results.findings():
        if row.kind == "new":
            share.publish(FINDINGS, row.entry)
    return share
