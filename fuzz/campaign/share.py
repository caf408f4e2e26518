"""`--share DIR`: independent campaigns exchange files in a directory that all of them see.

    queue/<case id>.case.yaml       cases that reached something new
    findings/<case id>.case.yaml    minimal, confirmed failures
    attributions/                   root causes (triage.cluster)

A file appears complete, under the id of its case, and never changes. Files of strangers that hold no such case are
skipped.
"""

import os
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import SUFFIX, Entry
from fuzz.events import Bus, Notice
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.case import Case

DIRECTORIES = QUEUE, FINDINGS, ATTRIBUTIONS = "queue", "findings", "attributions"
SCAN_SECONDS = 5.0
"""New files are looked for this often, ..."""
_SCAN_SHARE = 0.02
"""... and more rarely where looking would take more than this share of the time."""


class SharedFolder:
    """The directory, as the campaign with these results sees it. Threads share it.

    What a kill kept from the others is published. Each file that is skipped and each failure of the file system is a
    `Notice`; neither ends a campaign.
    """

    def __init__(self, directory: Path, results: Results, bus: Bus) -> None:
        self.directory, self._bus = directory.absolute(), bus
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: deque[Path] = deque()
        self._next = 0.0
        self._lock = threading.RLock()
        with suppress(FileExistsError):
            (results.path.parent / ATTRIBUTIONS).symlink_to(self.directory / ATTRIBUTIONS)
        for case, _ in results.queue():
            self.publish(QUEUE, Entry(case))
        for row in results.findings():
            if row.kind == "new":
                self.publish(FINDINGS, corpus_entry.loads(row.entry, row.file))

    def publish(self, kind: str, entry: Entry) -> None:
        """Write an entry for the others, unless it is there."""
        path = self.directory / kind / f"{entry.case.id}{SUFFIX}"
        with self._lock:
            self._seen[kind].add(path.name)
            try:
                if not path.exists():
                    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
                    temporary.write_text(corpus_entry.dumps(entry), encoding="utf-8")
                    temporary.replace(path)
            except OSError as error:
                self._warn(f"{path}: not written: {error.strerror}")

    def tick(self) -> bool:
        """Look for cases when it is time; gives whether it was."""
        with self._lock:
            began = time.monotonic()
            if began < self._next:
                return False
            self._waiting.extend(self._list_new(QUEUE))
            self._next = began + max(SCAN_SECONDS, (time.monotonic() - began) / _SCAN_SHARE)
            return True

    def take_case(self) -> Case | None:
        """A case of another campaign that reached something new there, each once; None when none waits."""
        while True:
            with self._lock:
                path = self._waiting.popleft() if self._waiting else None
            entry = None if path is None else self._read(path)
            if path is None or entry is not None:
                return None if entry is None else entry.case

    def take_findings(self) -> Iterator[tuple[Path, Entry]]:
        """The findings of other campaigns, each once."""
        with self._lock:
            paths = self._list_new(FINDINGS)
        for path in paths:
            entry = self._read(path)
            if entry is not None:
                yield path, entry

    def _list_new(self, kind: str) -> list[Path]:
        """The files that appeared since the last call."""
        directory, seen = self.directory / kind, self._seen[kind]
        try:
            with os.scandir(directory) as found:
                names = {one.name for one in found if one.name.endswith(SUFFIX) and not one.name.startswith(".")}
        except OSError as error:
            self._warn(f"{directory}: not read: {error.strerror}")
            return []
        new = sorted(names - seen)
        seen.update(new)
        return [directory / name for name in new]

    def _read(self, path: Path) -> Entry | None:
        try:
            return corpus_entry.load(path)
        except UserError as error:
            self._warn(f"skipped {error}")
            return None

    def _warn(self, text: str) -> None:
        self._bus.emit(Notice(text=f"--share: {text}"))
