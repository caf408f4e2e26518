"""The answers of a comparison of a module, block by block, as data and in words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.changed_rewrites import describe_changed, find_changed, has_rewrites
from fuzz.commands import list_commands, shorten
from fuzz.durations import format_count
from fuzz.importing.importer import Block, describe_gaps
from fuzz.protocol import EAGER, Verdict
from fuzz.protocol.failures import Value
from fuzz.versions import spell_label
from generators.records import Word


class Answer(Word):
    """The change from the old side to the new side, the worst first."""

    NEW_WRONG = "new wrong", "the new result is further from float64 than rounding explains, the old result is not"
    REFUSED = "newly refused", "the new side gives no result (error, timeout or memory), the old side does"
    BOTH_WRONG = "both wrong", "both results are further from float64 than rounding explains"
    OLD_WRONG = "old wrong", "the old result is further from float64 than rounding explains, the new result is not"
    ACCEPTED = "newly accepted", "the old side gives no result, the new side is right"
    UNJUDGED = "not judged", "one side takes no such program, or can't run it"
    IN_PART = (
        "in part",
        "right as far as it was judged: a case lacks calls of the module, float64 gives no number, or dropout stays on",
    )
    POLICY = "right at a declared precision", "the result is right at another precision, which the compiler declares"
    ROUNDING = "changed within rounding", "other bits, and both results are as right as rounding allows"
    EQUAL = "equal", "the same bits"

    @property
    def is_failure(self) -> bool:
        """Whether somebody who upgrades is worse off, or nobody is right."""
        return self in (Answer.NEW_WRONG, Answer.REFUSED, Answer.BOTH_WRONG)

    @property
    def is_partial(self) -> bool:
        """Whether something may be wrong that was not judged."""
        return self in (Answer.UNJUDGED, Answer.IN_PART)


_BESIDE_EAGER = {
    Answer.NEW_WRONG: "wrong",
    Answer.REFUSED: "no result",
    Answer.BOTH_WRONG: "wrong, and eager too",
    Answer.OLD_WRONG: "eager wrong",
    Answer.ACCEPTED: "eager gives no result",
    Answer.ROUNDING: "within rounding",
}
"""The answers that have other words in one version, where the old side is eager."""


@dataclass(frozen=True, slots=True)
class Side:
    """A block run one way: in a torch version, in eager or under a subject."""

    label: str
    verdict: Verdict
    hashes: tuple[str, ...] = ()
    ratio: float | None = None  # the worst row's error, relative to rounding
    why: str = ""
    output: int | None = None  # the index of the wrong output
    python: str = ""
    rewrites: tuple[str, ...] = ()  # that a compiler applied
    unjudged: tuple[Value, ...] = ()  # where float64 gives no number, and eager does

    @property
    def is_wrong(self) -> bool:
        return self.verdict.is_finding and not self.is_refused

    @property
    def is_refused(self) -> bool:
        # A kernel that breaks the GPU reads or writes where it must not: that is wrong.
        is_error = self.verdict.is_logged and self.verdict is not Verdict.DEVICE_ERROR
        return is_error or self.verdict is Verdict.REJECTED


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A block and a way to run it, on both sides."""

    block: Block
    way: str  # eager, or a subject
    old: Side
    new: Side
    mode: str = ""  # of the module, such as "training, dropout off"
    is_live: bool = False  # the module itself was judged; else its case
    is_evaluated: bool = False  # the module is in training, and was judged in inference
    reason: str = ""  # why its case was judged
    is_drawn_alone: bool = False  # it draws random numbers, and was judged with them alone
    case: Path | None = None  # a case that shows it too
    first: str = ""  # the line of the first value that moved, or that is wrong; or the first such submodule

    @property
    def failed(self) -> Side | None:
        """The side to report about."""
        return next((side for side in (self.new, self.old) if side.verdict.is_finding), None)

    @property
    def rewrites(self) -> dict[str, tuple[str, ...]]:
        """The rewrites that compilers applied, by the label of the side."""
        compiled = (side for side in (self.old, self.new) if side.label != EAGER and has_rewrites(side.verdict))
        return {side.label: side.rewrites for side in compiled}

    @property
    def report(self) -> str:
        """The command that writes the report."""
        if self.case is None or self.failed is None:
            return ""
        return list_commands(shorten(self.case), self.case.stem.partition(".")[0], self.way, self.failed.python)[1]

    @property
    def is_beside_eager(self) -> bool:
        """Whether the old side is eager, in the same version."""
        return self.old.label == EAGER and self.way != EAGER

    @property
    def told(self) -> str:
        """The answer, with sides by their names."""
        if not self.is_beside_eager:
            return str(self.answer)
        if self.new.verdict is Verdict.SKIPPED and self.new.why:
            return f"refused because {self.new.why}"
        if self.answer is Answer.POLICY:
            return self.new.why
        return _BESIDE_EAGER.get(self.answer, str(self.answer))

    @property
    def answer(self) -> Answer:
        old, new = self.old, self.new
        if Verdict.SKIPPED in (old.verdict, new.verdict) or (old.is_refused and new.is_refused):
            return Answer.UNJUDGED
        if new.is_refused:
            return Answer.REFUSED
        if old.is_refused:
            return Answer.NEW_WRONG if new.is_wrong else Answer.ACCEPTED
        if new.is_wrong:
            return Answer.BOTH_WRONG if old.is_wrong else Answer.NEW_WRONG
        if old.is_wrong:
            return Answer.OLD_WRONG
        if not (old.hashes and new.hashes):
            return Answer.UNJUDGED
        random = Verdict.RANDOM_STREAM in (old.verdict, new.verdict) and self.is_drawn_alone
        if old.unjudged or new.unjudged or random or (not self.is_live and describe_gaps(self.block)):
            return Answer.IN_PART
        if new.verdict is Verdict.PRECISION_POLICY and new.why:
            return Answer.POLICY
        return Answer.EQUAL if old.hashes == new.hashes else Answer.ROUNDING


def describe_unjudged(rows: Sequence[ModuleRow]) -> str:
    """Why no block is judged, in one line."""
    reasons = [text for row in rows for text in (row.old.why, row.new.why, describe_gaps(row.block)) if text]
    return "; ".join(dict.fromkeys(reasons)) or "it makes no torch-level call"


def render(rows: Sequence[ModuleRow], factory: str, labels: Sequence[str], left: Sequence[str] = ()) -> str:
    """The answer for a terminal: a few sentences, then a line for each block and way. Blocks of one class with the
    same answer share a line. `left`: what was not begun."""
    lines = [*summarize(rows, factory, labels, left), ""]
    groups: dict[Any, list[ModuleRow]] = {}
    for row in sorted(rows, key=lambda row: list(Answer).index(row.answer)):
        alone = id(row) if row.answer.is_failure or row.case or row.first else None
        rewrites = row.old.rewrites, row.new.rewrites
        groups.setdefault((alone, row.told, row.block.type, row.way, row.mode, row.is_live, rewrites), []).append(row)
    width = max([len(_name(of_kind)) for of_kind in groups.values()], default=0)
    for of_kind in groups.values():
        row = of_kind[0]
        errors = "" if row.answer is Answer.POLICY else _describe_errors(of_kind)
        lines.append(f"{_name(of_kind):{width}}  {row.way}  {row.mode}  {row.told}{errors}")
        lines += [f"    rewrites {applied}" for applied in _describe_rewrites(row)]
        lines += [f"    first in: {row.first}"] if row.first else []
        told = (row.old,) if row.is_beside_eager and not row.new.verdict.is_finding else (row.old, row.new)
        lines += [f"    {side.label}: {side.why}" for side in told if side.why]
        lines += [f"    not as it is: {row.reason}"] if row.reason else []
        lines += (
            ["    no case shows it: the module itself has to be run"] if row.answer.is_failure and not row.case else []
        )
        lines += [f"    {row.report}"] if row.report else []
    gaps = dict.fromkeys(describe_gaps(row.block) for row in rows if not row.is_live)
    return "\n".join([*lines, *filter(None, gaps)])


def summarize(rows: Sequence[ModuleRow], factory: str, labels: Sequence[str], left: Sequence[str] = ()) -> list[str]:
    """The question, what was judged and what was not, whether somebody is wrong, and the share that changed."""
    ways = ", ".join(dict.fromkeys(row.way for row in rows)) or "compiled"
    first = spell_label(labels[0])
    sides = f"{first} against {labels[-1]}" if len(labels) > 1 else f"eager against {ways}, {first}"
    judged = [row for row in rows if row.answer is not Answer.UNJUDGED]
    failing = [row for row in judged if row.answer.is_failure]
    old = [row for row in judged if row.answer is Answer.OLD_WRONG]
    told = Counter(row.told if row.answer is not Answer.UNJUDGED else Answer.UNJUDGED.value for row in rows)
    blocks = len({row.block.path for row in rows})
    is_beside_eager = any(row.is_beside_eager for row in rows)
    wrong = "No result is wrong by float64" if is_beside_eager else "No new result is wrong by float64"
    if failing:
        wrong = f"{len(failing)} of them must be looked at: {list_rows(failing)}"
    if old:
        wrong += f"; {'eager' if is_beside_eager else 'the old side'} alone is wrong {len(old)} times: {list_rows(old)}"
    return [
        f"{format_count(len(judged), 'result')} of {format_count(blocks, 'block')} of {factory}, {sides}.",
        *_describe_inputs(judged),
        f"{wrong}.",
        *_describe_changed_rewrites(judged),
        f"{', '.join(f'{number} {answer}' for answer, number in told.items()) or 'nothing'}.",
        *([f"Not begun: {', '.join(left)}."] if left else []),
    ]


def _describe_inputs(rows: Sequence[ModuleRow]) -> list[str]:
    """The values and the modes with which rows were run."""
    told = {
        True: "Judged as it is, with its own parameters and arguments",
        False: "Judged by cases that repeat it, with its own parameters and arguments",
    }
    modes = {is_live: dict.fromkeys(row.mode for row in rows if row.is_live is is_live) for is_live in told}
    lines = [f"{text}: {'; '.join(modes[is_live])}." for is_live, text in told.items() if modes[is_live]]
    ways = ", ".join(dict.fromkeys(row.way for row in rows if row.is_evaluated))
    return [
        *lines,
        *([f"The module is in training. Judged in inference, since no training is promised: {ways}."] if ways else []),
    ]


def _describe_changed_rewrites(rows: Sequence[ModuleRow]) -> list[str]:
    """The rewrites that changed in any block, with the number of results."""
    counted = Counter(line for row in rows for line in describe_changed(row.rewrites))
    return [f"Rewrites {line} ({format_count(number, 'result')})." for line, number in counted.items()]


def _describe_errors(rows: Sequence[ModuleRow]) -> str:
    """The largest errors of both sides, relative to rounding."""
    measured = (side for row in rows for side in (row.old, row.new) if side.verdict is not Verdict.NONFINITE)
    pairs = [(side.label, side.ratio) for side in measured if side.ratio]
    largest = {label: max(ratio for other, ratio in pairs if other == label) for label, _ in pairs}
    return "".join(f", {label} {ratio:.2g} of rounding" for label, ratio in largest.items())


def _describe_rewrites(row: ModuleRow) -> list[str]:
    """The rewrites of both sides, then those of one side alone."""
    applied = row.rewrites
    shared = [name for name in row.new.rewrites if all(name in names for names in applied.values())]
    return [*([f"applied: {', '.join(shared)}"] if shared else []), *describe_changed(applied)]


def as_data(row: ModuleRow) -> dict[str, Any]:
    """A row for JSON."""
    gaps = {"missing": dict(row.block.missing), "different": row.block.different, "reads": list(row.block.reads)}
    sides = {
        name: {
            "label": side.label,
            "verdict": side.verdict.value,
            "ratio": side.ratio,
            "why": side.why,
            "rewrites": list(side.rewrites),
        }
        for name, side in zip(
            ("eager", row.way) if row.is_beside_eager else ("old", "new"), (row.old, row.new), strict=True
        )
    }
    block = {"block": row.block.path, "type": row.block.type, "way": row.way, "mode": row.mode, "live": row.is_live}
    return (
        block
        | gaps
        | {
            "answer": row.told,
            "changed_rewrites": {name: list(labels) for name, labels in find_changed(row.rewrites).items()},
            "reason": row.reason,
            **sides,
            "first": row.first,
            "case": str(row.case or ""),
            "report": row.report,
        }
    )


def list_rows(rows: Sequence[ModuleRow]) -> str:
    """Rows in a sentence."""
    return ", ".join(f"{row.block.name} ({row.way}, {row.mode}: {row.told})" for row in rows)


def _name(rows: Sequence[ModuleRow]) -> str:
    return f"{rows[0].block.name} ({len(rows)} alike)" if len(rows) > 1 else rows[0].block.name
