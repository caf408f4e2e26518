"""`--share DIR`: independent campaigns exchange files in a directory that all of them see.

    queue/<case id>.case.yaml       cases that reached something new
    findings/<case id>.case.yaml    minimal, confirmed failures
    claims/<hash of a signature>    a campaign works on such failures
    attributions/                   root causes (triage.cluster)

A file appears complete, under the id of its case, and never changes. A file that holds no such case is skipped.
"""

import hashlib
import os
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import SUFFIX, Entry
from corpus.files import read_file
from fuzz.events import Bus, Notice
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.case import Case

DIRECTORIES = QUEUE, FINDINGS, CLAIMS, ATTRIBUTIONS = "queue", "findings", "claims", "attributions"
SCAN_SECONDS = 5.0
"""The pause between two looks for new files. A slow file system gets a longer pause: 50 times what a look takes."""
LEASE_SECONDS = 180.0
"""A claim that its owner has not refreshed for so long is abandoned. Each campaign measures that by its own clock."""
_MAX_OWNER = 100


class SharedFolder:
    """The directory, as a campaign sees it. Threads share it."""

    def __init__(self, directory: Path, owner: str, warn: Callable[[str], None]) -> None:
        """owner: a text that no other campaign has, the same after a restart; warn: gets a line for each skipped file
        and each failure of the file system. Neither ends a campaign."""
        self.directory, self._owner, self._warn = directory.absolute(), owner, warn
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: deque[Path] = deque()
        self._held: set[Path] = set()
        self._leases: dict[Path, tuple[int, float]] = {}
        """By claim of another campaign: its time of change, and when this campaign first saw that time."""
        self._next = 0.0
        self._lock = threading.RLock()
        for claim in (self.directory / CLAIMS).iterdir():
            with suppress(OSError, UserError):
                if self._is_own(claim):  # of an earlier session, which was killed
                    claim.unlink()

    def publish(self, kind: str, entry: Entry) -> None:
        """Write an entry for other campaigns, unless it is there."""
        path = self.directory / kind / f"{entry.case.id}{SUFFIX}"
        with self._lock:
            self._seen[kind].add(path.name)
            try:
                if not path.exists():
                    temporary = path.with_name(f".{self._owner}.tmp")
                    temporary.write_text(corpus_entry.dumps(entry), encoding="utf-8")
                    temporary.replace(path)
            except OSError as error:
                self._warn(f"--share: {path}: not written: {error.strerror}")

    def tick(self) -> bool:
        """Refresh claims and look for cases when it is time, and return whether it was time."""
        with self._lock:
            began = time.monotonic()
            if began < self._next:
                return False
            for claim in self._held:
                with suppress(OSError):  # another campaign took it over
                    os.utime(claim)
            self._waiting.extend(self._list_new(QUEUE))
            self._next = began + max(SCAN_SECONDS, 50 * (time.monotonic() - began))
            return True

    def take_case(self) -> Case | None:
        """A case of another campaign that reached something new there, each once; None when no case waits."""
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

    def claim(self, signature: str) -> bool:
        """Whether this campaign may work on failures with this signature, because no other campaign does."""
        path = self._claim_file(signature)
        with self._lock:
            if path in self._held:
                return True
            try:
                with suppress(FileNotFoundError):
                    if self._is_abandoned(path):
                        path.unlink()
                with path.open("x", encoding="utf-8") as file:
                    file.write(self._owner)
            except FileExistsError:
                return False
            except OSError as error:
                self._warn(f"--share: {path}: {error.strerror}")
            self._held.add(path)
            self._leases.pop(path, None)
            return True

    def release(self, signature: str) -> None:
        """End a claim."""
        path = self._claim_file(signature)
        with self._lock, suppress(OSError, UserError):
            self._held.discard(path)
            if self._is_own(path):
                path.unlink()

    def _claim_file(self, signature: str) -> Path:
        return self.directory / CLAIMS / hashlib.sha256(signature.encode()).hexdigest()[:16]

    def _is_own(self, claim: Path) -> bool:
        return read_file(claim, _MAX_OWNER).decode(errors="replace") == self._owner

    def _is_abandoned(self, claim: Path) -> bool:
        changed, now = claim.stat().st_mtime_ns, time.monotonic()
        before, since = self._leases.get(claim, (changed, now))
        self._leases[claim] = (changed, since if before == changed else now)
        return before == changed and now - since > LEASE_SECONDS

    def _list_new(self, kind: str) -> list[Path]:
        """The files that appeared since the last call."""
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
    """The directory, for the campaign with these results. Publishes the files that an earlier kill prevented."""
    owner = results.meta("owner") or secrets.token_hex(8)
    results.set_meta({"owner": owner})
    with suppress(FileExistsError):
        (results.path.parent / ATTRIBUTIONS).symlink_to((directory / ATTRIBUTIONS).absolute())
    share = SharedFolder(directory, owner, lambda text: bus.emit(Notice(text=text)))
    for case, _ in results.queue():
        share.publish(QUEUE, Entry(case))
    for row in results.findings():
        if row.kind == "new":
            share.publish(FINDINGS, corpus_entry.loads(row.entry, row.file))
    return share
