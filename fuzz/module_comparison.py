"""Compares a module between torch versions, or eager with compiled, and judges both sides by float64."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpus.entry import Entry, Expectation, Found, save
from fuzz.commands import list_commands, shorten
from fuzz.durations import format_count
from fuzz.evaluator import Evaluator
from fuzz.importing.importer import Block, ModuleImport, describe_gaps
from fuzz.protocol import EAGER, Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from generators.errors import UserError
from generators.program.case import Case
from generators.program.edits import prune_if_valid
from generators.program.emit import source
from generators.program.type_check import check
from generators.program.values import category
from generators.records import Word


class Answer(Word):
    """The change from the old side to the new side, the worst first."""

    NEW_WRONG = "new wrong", "the new result is further from float64 than rounding explains, the old result is not"
    REFUSED = "newly refused", "the new side gives no result (error, timeout or memory), the old side does"
    BOTH_WRONG = "both wrong", "both results are further from float64 than rounding explains"
    OLD_WRONG = "old wrong", "the old result is further from float64 than rounding explains, the new result is not"
    ACCEPTED = "newly accepted", "the old side gives no result, the new side is right"
    ROUNDING = "changed within rounding", "other bits, and both results are as right as rounding allows"
    EQUAL = "equal", "the same bits"
    UNJUDGED = "not judged", "one side takes no such program, or the block is not imported"

    @property
    def is_failure(self) -> bool:
        """Whether somebody who upgrades is worse off, or nobody is right."""
        return self in (Answer.NEW_WRONG, Answer.REFUSED, Answer.BOTH_WRONG)


_ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY)


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

    @property
    def is_wrong(self) -> bool:
        return self.verdict.is_finding and not self.is_refused

    @property
    def is_refused(self) -> bool:
        return self.verdict in _ERRORS or self.verdict is Verdict.REJECTED


@dataclass(frozen=True, slots=True)
class Row:
    """A block and a way to run it, on both sides."""

    block: Block
    way: str  # eager, or a subject
    old: Side
    new: Side
    case: Path | None = None
    first: str = ""  # the line of the first value that moved, or that is wrong

    @property
    def failed(self) -> Side | None:
        """The side to report about."""
        return next((side for side in (self.new, self.old) if side.verdict.is_finding), None)

    @property
    def report(self) -> str:
        """The command that writes the report."""
        if self.case is None or self.failed is None:
            return ""
        return list_commands(shorten(self.case), self.case.stem.partition(".")[0], self.way, self.failed.python)[1]

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
        return Answer.EQUAL if old.hashes == new.hashes else Answer.ROUNDING


@dataclass
class ModuleComparison:
    """Judges the blocks of a module. `versions`: evaluators by torch version, old and new, or a single one."""

    versions: Mapping[str, Evaluator]
    subjects: Sequence[str]
    out: Path  # a directory for case files
    rows: list[Row] = field(default_factory=list)

    def compare(self, block: Block) -> Iterator[Row]:
        """The rows of a block. Between versions, eager is a row of its own; in one version it is the old side. A block
        that is not imported has one row."""
        case = block.case
        if case is None:
            self.rows.append(Row(block, "import", *(Side("", Verdict.SKIPPED),) * 2))
            yield self.rows[-1]
            return
        subjects = tuple(self.subjects)
        for evaluator in self.versions.values():
            evaluator.submit_with_hashes(case, subjects)
        results = {label: evaluator.collect() for label, evaluator in self.versions.items()}
        first = next(iter(results.values()))
        for way in (EAGER, *subjects) if len(results) > 1 else subjects:
            of_versions = [_read_side(label, result, way) for label, result in results.items()]
            old, new = (
                of_versions if len(results) > 1 else (_read_side(EAGER, first, EAGER), _read_side(way, first, way))
            )
            old, new = (replace(side, python=self._run_by(side).config.python) for side in (old, new))
            yield self._finish(Row(block, way, old, new), case)

    def _finish(self, row: Row, case: Case) -> Row:
        """The row with its case file, and the first value that moved."""
        if row.answer not in (Answer.EQUAL, Answer.UNJUDGED):
            row = replace(row, case=self._save(row, case), first=_find_line(case, self._find_first(row, case)))
        self.rows.append(row)
        return row

    def _save(self, row: Row, case: Case) -> Path:
        wrong = row.failed
        subject = row.way if row.way != EAGER else self.subjects[0]
        note = f"{row.block.name}, {row.block.calls} calls"
        if wrong is None:
            return save(Entry(case, note, Expectation("rounding", subject=subject)), self.out)
        found = Found(wrong.verdict.value, subject, torch=self._run_by(wrong).hello.torch, message=wrong.why)
        return save(Entry(case, note, found=found), self.out)

    def _run_by(self, side: Side) -> Evaluator:
        return self.versions.get(side.label, next(iter(self.versions.values())))

    def _find_first(self, row: Row, case: Case) -> str:
        """In eager, the first value that differs between versions. Under a subject, the first value that is
        wrong if it is all that is returned."""
        evaluators = list(self.versions.values())
        types = check(case)
        floats = [op.name for op in case.ops if category(types[op.name].dtype) == 2]
        if row.way == EAGER:
            every = prune_if_valid(replace(case, returns=tuple(floats), mode="inference", contracts=()))
            if every is None:
                return ""
            for one in evaluators:
                one.submit_with_hashes(every, ())
            old, new = [one.collect().hashes for one in evaluators]
            pairs = zip(every.returns, old, new, strict=False)
            return next((name for name, a, b in pairs if a != b), "")
        wrong = row.new if row.new.is_wrong else row.old
        if not wrong.is_wrong or wrong.output is None:
            return ""
        before = case.dependencies([case.returns[wrong.output]])
        floats = [name for name in floats if name in before]
        evaluator = self._run_by(wrong)

        def is_wrong(name: str) -> bool:
            alone = prune_if_valid(replace(case, returns=(name,), contracts=()))
            return alone is not None and evaluator.judge(alone, row.way).verdict.is_finding

        return next(iter(floats[bisect_left(floats, True, key=is_wrong) :]), "")


def save_wrong_block(module: ModuleImport, evaluator: Evaluator, out: Path) -> Path | None:
    """A case file of the first block that fails if it is compiled, the whole module last; None if no block fails.

    Raises `UserError` if no block can be judged.
    """
    blocks = sorted(module.import_blocks(), key=lambda block: not block.path)
    judged = False
    for block in blocks:
        if block.case is None:
            continue
        result = evaluator.judge(block.case, "inductor")
        judged |= result.verdict is not Verdict.SKIPPED
        if result.verdict.is_finding:
            found = Found(result.verdict.value, "inductor", torch=evaluator.hello.torch, message=describe(result))
            return save(Entry(block.case, f"{module.factory}, {block.name}", found=found), out)
    if not judged:
        raise UserError(f"{module.factory}: no block is judged: {'; '.join(filter(None, map(describe_gaps, blocks)))}")
    return None


def _read_side(label: str, result: Result, way: str) -> Side:
    if result.rejected is not None:
        return Side(label, Verdict.REJECTED, why=result.rejected)
    is_eager = way == EAGER
    missing = SubjectResult(way, Verdict.OK if is_eager else Verdict.SKIPPED)
    of_way = (
        found
        for found in result.results
        if (found.verdict is Verdict.EAGER_SUSPECT if is_eager else found.subject == way)
    )
    judged = next(of_way, missing)
    # A verdict that accuses eager is about the other side.
    verdict = Verdict.OK if judged.verdict is Verdict.EAGER_SUSPECT and not is_eager else judged.verdict
    side = Side(label, verdict, result.hashes if is_eager else judged.hashes, judged.numbers.get("ratio"))
    if not verdict.is_finding:
        return side
    value = judged.value
    output = value.name if value is not None and value.kind == "output" and not value.is_gradient else None
    return replace(side, why=describe(judged), output=output if isinstance(output, int) else None)


def _find_line(case: Case, name: str) -> str:
    """The line of the program that computes a value; a write has none, only its name."""
    lines = map(str.strip, source(case).splitlines())
    return next((line for line in lines if line.startswith(f"{name} = ")), name)


def render(rows: Sequence[Row], blocks: Sequence[Block], factory: str, labels: Sequence[str]) -> str:
    """The answer for a terminal: three sentences, then a line for each block and way."""
    lines = [*summarize(rows, blocks, factory, labels), ""]
    width = max([len(_name(row.block)) for row in rows], default=0)
    for row in sorted(rows, key=lambda row: list(Answer).index(row.answer)):
        ratios = "".join(f", {side.label} {side.ratio:.2g} of rounding" for side in (row.old, row.new) if side.ratio)
        lines.append(f"{_name(row.block):{width}}  {row.way:9} {row.answer}{ratios}")
        lines += [f"    first in: {row.first}"] if row.first else []
        lines += [f"    {side.label}: {side.why}" for side in (row.old, row.new) if side.why]
        lines += [f"    {row.report}"] if row.report else []
    return "\n".join([*lines, *filter(None, map(describe_gaps, blocks))])


def summarize(rows: Sequence[Row], blocks: Sequence[Block], factory: str, labels: Sequence[str]) -> list[str]:
    """Three sentences: the question, whether somebody is wrong, and the share that changed."""
    sides = (
        f"torch {labels[0]} against {labels[-1]}" if len(labels) > 1 else f"eager against compiled, torch {labels[0]}"
    )
    judged = [row for row in rows if row.answer is not Answer.UNJUDGED]
    failing = [row for row in judged if row.answer.is_failure]
    old = [row for row in judged if row.answer is Answer.OLD_WRONG]
    moved = sum(row.answer is Answer.ROUNDING for row in judged)
    wrong = "No new result is wrong by float64"
    if failing:
        wrong = f"{len(failing)} of them must be looked at: {_list(failing)}"
    if old:
        wrong += f"; the old side alone is wrong {len(old)} times: {_list(old)}"
    return [
        f"{format_count(len(judged), 'result')} of {format_count(len(blocks), 'block')} of {factory}, {sides}.",
        f"{wrong}.",
        f"{moved} changed within rounding, {sum(row.answer is Answer.EQUAL for row in judged)} are equal bit for bit.",
    ]


def as_data(row: Row) -> dict[str, Any]:
    """A row for JSON."""
    gaps = {"missing": dict(row.block.missing), "different": row.block.different, "reads": list(row.block.reads)}
    sides = {
        name: {"label": side.label, "verdict": side.verdict.value, "ratio": side.ratio, "why": side.why}
        for name, side in (("old", row.old), ("new", row.new))
    }
    block = {"block": row.block.path, "type": row.block.type, "also": list(row.block.also), "way": row.way}
    return (
        block
        | gaps
        | {"answer": row.answer.value, **sides, "first": row.first, "case": str(row.case or ""), "report": row.report}
    )


def _list(rows: Sequence[Row]) -> str:
    return ", ".join(f"{_name(row.block)} ({row.way}: {row.answer})" for row in rows)


def _name(block: Block) -> str:
    return f"{block.name} ({len(block.also) + 1} alike)" if block.also else block.name
