"""events.ndjson: every event of a run directory, one JSON object a line, appended."""

import json
from pathlib import Path

from fuzz.campaign.events import Event

FILE = "events.ndjson"


class EventLog:
    """Appends each event as it happens, `time` (seconds since the epoch) first."""

    def __init__(self, directory: Path) -> None:
        # Line buffered: a kill costs no line, and breaks at most the last.
        self._file = (directory / FILE).open("a", buffering=1, encoding="utf-8")
        if self._file.tell():
            self._file.write("\n" if _broken(directory / FILE) else "")

    def on_event(self, event: Event, when: float) -> None:
        """Write one line."""
        data = {"time": round(when, 3), **event.to_dict()}
        self._file.write(json.dumps(data) + "\n")

    def tick(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _broken(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
