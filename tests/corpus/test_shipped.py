"""Nothing that ships ends a process or a device of other software, or hangs it, as far as its data tell."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import ledger
from corpus.causes import Mechanism, MechanismKind
from corpus.entry import CASE_SUFFIX, Entry, Found, load, save
from fuzz.ask.worker_config import ROOT
from fuzz.protocol import Verdict
from tests.campaign.fakes import case

CASES = ("benchmarks", "corpus/known", "corpus/seeds", "docs", "findings", "tests")
LOST_PROCESS = {verdict for verdict in Verdict if verdict.is_lost}
MEASURED, REPORTS, FINDINGS = "benchmarks/measured", "docs/reports", "findings"
WORDS = {word for verdict in LOST_PROCESS for word in (verdict.value, verdict.value.replace("_", " "))}
WORDS |= {str(Mechanism(MechanismKind(verdict))) for verdict in LOST_PROCESS}
_WORD = "|".join(sorted(WORDS))
LOST_IN_A_REPORT = re.compile(
    rf"^\*\*Careful: |^\|.*\| ({_WORD})\b.*\|$|\d: ({_WORD})\b|\(here: (-|timed out)", re.MULTILINE
)
LOST_IN_A_SCRIPT = re.compile(
    "SIG(SEGV|ABRT|BUS|FPE|ILL|KILL)|[Ss]egmentation fault|core dumped|misaligned address|illegal memory|device-side"
)


def find_cases(root: Path) -> Iterator[Path]:
    """Case files with the verdict of a lost process, in any version."""
    for path in (path for name in CASES for path in (root / name).rglob(f"*{CASE_SUFFIX}")):
        entry = load(path)
        told = {entry.verdict, entry.expectation.verdict, *(text.partition(" ")[0] for text in entry.seen.values())}
        if told & LOST_PROCESS:
            yield path


def find_examples(bugs: ledger.Ledger, root: Path) -> Iterator[Path]:
    """The examples and reports of bugs that lose a process."""
    for bug in bugs.bugs:
        if any(cause.mechanism.value in LOST_PROCESS for cause in bug.causes):
            yield from (bugs.path.parent / name for name in bug.cases)
            yield from (root / REPORTS).glob(bug.id)


def find_texts(root: Path) -> Iterator[Path]:
    """Reports, findings and measurements that tell of a lost process."""
    for path in (root / REPORTS).rglob("*.*"):
        if path.suffix in (".md", ".py") and LOST_IN_A_REPORT.search(path.read_text(encoding="utf-8")):
            yield path
    for path in (*(root / FINDINGS).rglob("*.*"), *(root / REPORTS).rglob("*.py")):
        if LOST_IN_A_SCRIPT.search(path.read_text(encoding="utf-8")):
            yield path
    for path in (root / MEASURED).glob("*.json"):
        if WORDS & {*_list_strings(json.loads(path.read_text(encoding="utf-8")))}:
            yield path


def _list_strings(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        data = [*data, *data.values()]
    if isinstance(data, list):
        for one in data:
            yield from _list_strings(one)
    elif isinstance(data, str):
        yield data


def test_nothing_that_ships_ends_a_process_or_a_device() -> None:
    bugs = ledger.load(ledger.LEDGER)
    assert [*find_cases(ROOT), *find_examples(bugs, ROOT), *find_texts(ROOT)] == []


@pytest.mark.parametrize("verdict", sorted(LOST_PROCESS))
def test_a_program_that_does_is_found_wherever_it_lies(tmp_path: Path, verdict: str) -> None:
    entry = Entry(case("softmax"), found=Found(verdict, "inductor"))
    cases = [save(entry, tmp_path / name / "below") for name in CASES]
    seen = Entry(case("exp"), found=Found("wrong_result", "inductor"), seen={"2.13.0": f"{verdict} RuntimeError"})
    cases.append(save(seen, tmp_path / "docs"))
    assert sorted(find_cases(tmp_path)) == sorted(cases)

    bugs = ledger.load(ledger.LEDGER)
    listed = next(bug for bug in bugs.bugs if bug.cases)
    lost = replace(listed, also=(replace(listed.cause, mechanism=MechanismKind(verdict)),))
    examples = [*find_examples(replace(bugs, bugs=(lost,)), ROOT)]
    assert [path.relative_to(bugs.path.parent) for path in examples[: len(lost.cases)]] == [*map(Path, lost.cases)]

    told = verdict.replace("_", " ")
    texts = {
        f"{REPORTS}/bug/report.md": f"| inductor | {told} SIGSEGV |",
        f"{REPORTS}/other/report.md": "It exits with 1 if the bug shows (here: -11), 0 if not.",
        f"{REPORTS}/third/report.md": "**Careful: running the program of this report ends its process.**",
        f"{REPORTS}/bug/test_regression.py": f'"""attention\n\n2.11.0: {told}; 2.15.0: ok\n"""',
        f"{FINDINGS}/lost.sh": "# The second call ends in a segmentation fault.",
        f"{MEASURED}/golden.json": json.dumps({"bug": {"cause": [str(Mechanism(MechanismKind(verdict)))]}}),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {*find_texts(tmp_path)} == {tmp_path / name for name in texts}
