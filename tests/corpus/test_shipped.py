"""The cases that ship end no process and no device of other software."""

from corpus.entry import load_directory
from fuzz.ask.worker_config import ROOT
from fuzz.protocol import Verdict

LOSSES = {Verdict.WORKER_DIED, Verdict.DEVICE_ERROR, Verdict.TIMEOUT}


def test_no_case_ends_a_process_or_a_device() -> None:
    found = {}
    for name in ("known", "seeds"):
        for path, entry in load_directory(ROOT / "corpus" / name).items():
            told = {entry.verdict, *(text.partition(" ")[0] for text in entry.seen.values())}
            if not told.isdisjoint(LOSSES):
                found[path] = told
    assert not found
