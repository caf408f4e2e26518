"""Compares a module between torch versions, or eager with compiled, and judges both sides by float64."""

import math
import sys
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from corpus.entry import Entry, Expectation, Found, save
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Asker, Question, ask_each
from fuzz.ask.worker_config import WorkerConfig
from fuzz.cli import ignore_lost_output
from fuzz.commands import write_json
from fuzz.error_location import describe_with_names
from fuzz.importing.importer import Block, BlockFailed, FactoryMissing, ModuleImport
from fuzz.module_answer import Answer, ModuleRow, Side, as_data, describe_unjudged, list_rows, render
from fuzz.protocol import EAGER, Live, Parted, Result, SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Refusal, RightAt
from fuzz.protocol.recording import Submodule
from fuzz.protocol.render import describe
from fuzz.versions import spell_label, start_versions
from generators.errors import UserError
from generators.program.case import Case
from generators.program.edits import prune_if_valid
from generators.program.emit import source
from generators.program.ops import OPS
from generators.program.type_check import check
from generators.program.values import category

_AS_WRONG = 0.5
"""A subject with this share of eager's error, where an operation of eager is proven wrong, makes the same mistake."""


@dataclass
class ModuleComparison:
    """Judges the blocks of a module: the module itself in every version that can import it, else its cases.

    modules: the module by torch version, old and new, or in a single version; a version that can't import it is missing
    versions: askers of cases, by torch version
    out: a directory for case files
    refused: why the module does not run in eager there, by torch version; such a version is missing in `modules`
    """

    modules: Mapping[str, ModuleImport]
    versions: Mapping[str, Asker]
    subjects: Sequence[str]
    out: Path
    refused: Mapping[str, str] = field(default_factory=dict)
    rows: list[ModuleRow] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what `compare_all` has not done

    @property
    def module(self) -> ModuleImport:
        """The module that names the blocks, and gives their cases."""
        return next(iter(self.modules.values()))

    def compare_all(self, runs: Sequence[str] = (), seconds: float = math.inf) -> Iterator[ModuleRow]:
        """The rows of all blocks in these runs, by default in all runs of a released model.

        After `seconds` no further block is begun.
        """
        began = time.monotonic()
        self.left = [*(runs or self.module.list_runs())]
        while self.left and time.monotonic() - began < seconds:
            run, *later = self.left
            for module in self.modules.values():
                if module.run != run:
                    module.begin(run)
            parts = {
                ": ".join(filter(None, (run, part.path or part.type))): part for part in self.module.choose_blocks()
            }
            self.left = [*parts, *later]
            for name, part in parts.items():
                if time.monotonic() - began >= seconds:
                    return
                yield from self.compare(part)
                self.left.remove(name)

    def compare(self, part: Submodule) -> Iterator[ModuleRow]:
        """The rows of a block, for dropout off and on. Between versions, eager is a row of its own; in one version it
        is the old side."""
        loaded = self.module.loaded
        mode = self.module.run or ("training" if loaded.training else "inference")
        block, for_inference = Block.without_case(part), tuple[str, ...]()
        for live in [Live(part.path, drops) for drops in ((False, True) if loaded.drops else (True,))]:
            results = self._ask(live, self.subjects)
            if reason := self._find_reason(results):
                yield from self._list_live_failures(part, results, mode, live)
                yield from self._compare_case(part, mode, reason)
                return
            for_inference = _list_for_inference(results)
            named = f"{mode}, dropout {'on' if live.drops else 'off'}" if loaded.drops else mode
            for row in self._pair(block, results, named, is_live=True, without=for_inference):
                alone = replace(row, is_drawn_alone=not loaded.drops)
                yield self._finish(self._find_part(alone, part, live), part)
        live = Live(part.path, inference=True)
        results = self._ask(live, for_inference) if for_inference else {}
        for row in self._pair_in_inference(block, results, for_inference, is_live=True):
            yield self._finish(self._find_part(row, part, live), part)

    def _find_reason(self, results: Mapping[str, Result]) -> str:
        """Why not all versions have judged the module as it is; "" if they have."""
        missing = [label for label in self.versions if label not in results]
        if missing:
            return f"{spell_label(missing[0])} can't import it"
        refused = (result.rejected for result in results.values() if result.rejected and result.stage != EAGER)
        values = {module.loaded.values for module in self.modules.values()}
        return next(refused, "") or ("its factory gives other values in each version" if len(values) > 1 else "")

    def _list_live_failures(
        self, part: Submodule, results: Mapping[str, Result], mode: str, live: Live
    ) -> Iterator[ModuleRow]:
        """Rows of eager against compiled, in versions where the module as it is fails: a case may not show it."""
        block = Block.without_case(part)
        for label, result in results.items():
            for row in self._pair(block, {label: result}, mode, is_live=True):
                if row.new.verdict.is_finding:
                    yield self._finish(self._find_part(row, part, live), part)

    def _ask(self, live: Live, subjects: Sequence[str]) -> dict[str, Result]:
        """The results of a part in all versions that can import the module. They are judged at the same time."""
        results = _ask_all(self.modules, Question(live, tuple(subjects), hashes=True))
        results |= {label: Result(0, reason, (), stage=EAGER) for label, reason in self.refused.items()}
        return {label: results[label] for label in self.versions if label in results}

    def _compare_case(self, part: Submodule, mode: str, reason: str) -> Iterator[ModuleRow]:
        try:
            block = self.module.import_block(part, keeps_values=True)
        except BlockFailed as error:
            block = Block.without_case(part, str(error))
        if block.case is None:
            self.rows.append(ModuleRow(block, "import", *(Side("", Verdict.SKIPPED),) * 2, mode=mode, reason=reason))
            yield self.rows[-1]
            return
        results = self._ask_case(block.case, self.subjects)
        for_inference = _list_for_inference(results)
        rows = list(self._pair(block, results, mode, is_live=False, without=for_inference))
        if for_inference:
            results = self._ask_case(replace(block.case, mode="inference"), for_inference)
            rows += self._pair_in_inference(block, results, for_inference, is_live=False)
        for row in rows:
            yield self._finish(replace(row, reason=reason), part)

    def _ask_case(self, case: Case, subjects: Sequence[str]) -> dict[str, Result]:
        return _ask_all(self.versions, Question(case, tuple(subjects), hashes=True))

    def _pair_in_inference(
        self, block: Block, results: Mapping[str, Result], asked: Collection[str], *, is_live: bool
    ) -> Iterator[ModuleRow]:
        """The rows of ways that promise inference alone, of a module in training."""
        others = [name for name in self.subjects if name not in asked]
        for row in self._pair(block, results, "", is_live=is_live, without=others) if asked else ():
            if row.way != EAGER:
                yield replace(row, mode="inference", is_evaluated=True)

    def _pair(
        self, block: Block, results: Mapping[str, Result], mode: str, *, is_live: bool, without: Collection[str] = ()
    ) -> Iterator[ModuleRow]:
        first, subjects = next(iter(results.values())), [name for name in self.subjects if name not in without]
        for way in (EAGER, *subjects) if len(results) > 1 else subjects:
            ways = [(label, result, way) for label, result in results.items()]
            ways = ways if len(results) > 1 else [(name, first, name) for name in (EAGER, way)]
            old, new = (_read_side(*read, block.case) for read in ways)
            old, new = (replace(side, python=self._run_by(side).config.python) for side in (old, new))
            yield ModuleRow(block, way, old, new, mode, is_live)

    def _find_part(self, row: ModuleRow, part: Submodule, live: Live) -> ModuleRow:
        """The row with the first block whose result is wrong, if the whole module is."""
        wrong = next((side for side in (row.new, row.old) if side.is_wrong), None)
        if wrong is None or part.path or row.way == EAGER:
            return row
        module = self.modules.get(wrong.label, self.module)
        watched = tuple(other.path for other in module.choose_blocks() if other.path)
        if not watched:
            return row
        answer = module.ask(Question(replace(live, watched=watched), (row.way,), hashes=True))
        seen = (item for result in answer.results for item in result.observations if isinstance(item, Parted))
        return replace(row, first=next((parted.path for parted in seen), ""))

    def _finish(self, row: ModuleRow, part: Submodule) -> ModuleRow:
        """The row with a case file, and the first value that moved."""
        is_of_interest = row.answer.is_failure or row.answer is Answer.OLD_WRONG or row.way == EAGER
        if is_of_interest and row.answer not in (Answer.EQUAL, Answer.UNJUDGED, Answer.IN_PART):
            row = self._add_case(row, part)
        self.rows.append(row)
        return row

    def _add_case(self, row: ModuleRow, part: Submodule) -> ModuleRow:
        block = row.block
        if row.is_live:
            try:
                block = self.module.import_block(part, keeps_values=True)
            except BlockFailed:
                return row
        case = block.case
        if case is None:
            return row
        case = replace(case, mode="inference") if row.is_evaluated else case
        if row.is_live and not self._shows(row, case):
            return row
        first = _find_line(case, self._find_first(row, case)) or row.first
        return replace(row, block=replace(block, case=case), case=self._save(row, case), first=first)

    def _shows(self, row: ModuleRow, case: Case) -> bool:
        """Whether a case of the block fails as the module itself does."""
        if row.failed is None or row.way == EAGER:
            return True
        return self._run_by(row.failed).ask(Question(case, (row.way,))).only.verdict.is_finding

    def _save(self, row: ModuleRow, case: Case) -> Path:
        wrong = row.failed
        subject = row.way if row.way != EAGER else self.subjects[0]
        note = f"{row.block.name}, {row.block.calls} calls"
        if wrong is None:
            return save(Entry(case, note, Expectation("rounding", subject=subject)), self.out)
        found = Found(wrong.verdict.value, subject, torch=self._run_by(wrong).hello.torch, message=wrong.why)
        return save(Entry(case, note, found=found), self.out)

    def _run_by(self, side: Side) -> Asker:
        return self.versions.get(side.label, next(iter(self.versions.values())))

    def _find_first(self, row: ModuleRow, case: Case) -> str:
        """In eager, the first value that differs between versions. Under a subject, the first value that is
        wrong if it is all that is returned."""
        types = check(case)
        floats = [op.name for op in case.ops if category(types[op.name].dtype) == 2]
        if row.way == EAGER:
            every = prune_if_valid(replace(case, returns=tuple(floats), mode="inference", contracts=()))
            if every is None:
                return ""
            question = Question(every, (), hashes=True)
            old, new = ask_each([(version, question) for version in self.versions.values()])
            pairs = zip(every.returns, old.hashes, new.hashes, strict=False)
            return next((name for name, a, b in pairs if a != b), "")
        wrong = row.new if row.new.is_wrong else row.old
        if not wrong.is_wrong or wrong.output is None:
            return ""
        before = case.dependencies([case.returns[wrong.output]])
        # A view computes nothing.
        computed = {op.name for op in case.ops if not OPS[op.kind].memory.is_view}
        floats = [name for name in floats if name in before and name in computed]
        asker = self._run_by(wrong)

        def is_wrong(name: str) -> bool:
            alone = prune_if_valid(replace(case, returns=(name,), contracts=()))
            return alone is not None and asker.ask(Question(alone, (row.way,))).only.verdict.has_wrong_numbers

        return next(iter(floats[bisect_left(floats, True, key=is_wrong) :]), "")


@contextmanager
def open_comparison(
    configs: Sequence[WorkerConfig], factory: str, subjects: Sequence[str], out: Path
) -> Iterator[ModuleComparison]:
    """A comparison of the module of `factory` in the versions of `configs`, the old version first; ends its workers.

    Raises `UserError`, also if no version can import the module.
    """
    with ExitStack() as stack:
        evaluators = [stack.enter_context(open_evaluator(one)) for one in configs]
        modules: dict[int, ModuleImport] = {}
        missing: FactoryMissing | None = None
        refused: dict[int, str] = {}
        for number, one in enumerate(evaluators):
            try:
                # They share the evaluator's compiled code.
                modules[number] = stack.enter_context(ModuleImport(one.config, factory))
            except FactoryMissing as error:
                missing = missing or error
            except UserError as error:
                if not modules:
                    raise
                refused[number] = str(error)
        if not modules:
            assert missing is not None
            raise missing
        labels = list(start_versions([modules.get(number, one) for number, one in enumerate(evaluators)], subjects))
        named = {labels[number]: module for number, module in modules.items()}
        reasons = {labels[number]: reason for number, reason in refused.items()}
        yield ModuleComparison(named, dict(zip(labels, evaluators, strict=True)), subjects, out, reasons)


def judge_modules(
    config: WorkerConfig, factories: Sequence[str], subjects: Sequence[str], out: Path, *, quiet: bool
) -> int:
    """Judge the blocks of modules as they are, and print the answers. Returns how many fail.

    out: a directory for case files, and for the answers as JSON
    """
    n_failing = 0
    for number, factory in enumerate(factories):
        with open_comparison([config], factory, subjects, out) as comparison:
            # A function of the user's may compute attention, for which there are neighbours alone.
            comparison.subjects = [name for name in subjects if name not in comparison.module.hello.attention]
            if not comparison.subjects:
                continue
            rows = list(comparison.compare_all([""]))
            failing = [row for row in rows if row.answer.is_failure]
            n_failing += len(failing)
            write_json([as_data(row) for row in rows], out / f"module-{number}.json")
            if failing or not quiet:
                with ignore_lost_output():
                    sys.stdout.write(f"{render(rows, factory, list(comparison.versions))}\n")
    return n_failing


def save_wrong_block(comparison: ModuleComparison) -> Path | None:
    """A case file of the first block that fails if it is compiled, the whole module last; None if no block fails.

    Raises `UserError` if no block can be judged, or if no case shows the failure.
    """
    module = comparison.module
    for part in sorted(module.choose_blocks(), key=lambda part: not part.path):
        found = next((row.case for row in comparison.compare(part) if row.answer.is_failure and row.case), None)
        if found is not None:
            return found
    failing = [row for row in comparison.rows if row.answer.is_failure]
    if failing:
        raise UserError(
            f"{module.factory}: {list_rows(failing)}, and no case shows it: the module itself has to be run"
        )
    if all(row.answer is Answer.UNJUDGED for row in comparison.rows):
        raise UserError(f"{module.factory}: no block is judged: {describe_unjudged(comparison.rows)}")
    return None


def _read_side(label: str, result: Result, way: str, case: Case | None) -> Side:
    """case: names the values; None if the module itself was judged"""
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
    # A verdict that accuses eager is about the other side, unless the subject is about as wrong.
    numbers = judged.numbers
    is_right = numbers.get("compiled_error", 0.0) < _AS_WRONG * numbers.get("eager_error", 0.0)
    is_of_eager = judged.verdict is Verdict.EAGER_SUSPECT and not is_eager and is_right
    verdict = Verdict.OK if is_of_eager else judged.verdict
    hashes = result.hashes if is_eager else judged.hashes
    side = Side(
        label, verdict, hashes, numbers.get("ratio"), rewrites=judged.applied_rewrites, unjudged=result.unjudged
    )
    is_policy = isinstance(judged.failure, RightAt)
    if verdict is not Verdict.SKIPPED and not verdict.is_finding and not is_policy:
        return side
    why = describe(judged) if case is None else describe_with_names(case, judged)
    value = judged.value
    output = value.name if value is not None and value.kind == "output" and not value.is_gradient else None
    return replace(side, why=why, output=output if isinstance(output, int) else None)


def _ask_all(askers: Mapping[str, Asker], question: Question) -> dict[str, Result]:
    """The answers by version. Versions work at the same time. Subjects that a lost process took along are asked about
    again."""
    answers = ask_each([(asker, question) for asker in askers.values()])
    results = dict(zip(askers, answers, strict=True))
    for label, asker in askers.items():
        result = results[label]
        while result.results and (left := _list_left(question, result)):
            more = asker.ask(replace(question, subjects=left))
            if not more.results:
                break
            result = replace(more, results=(*result.results, *more.results), hashes=more.hashes or result.hashes)
        results[label] = result
    return results


def _list_left(question: Question, result: Result) -> tuple[str, ...]:
    judged = {one.subject for one in result.results}
    return tuple(name for name in question.subjects if name not in judged)


def _list_for_inference(results: Mapping[str, Result]) -> tuple[str, ...]:
    """The ways that promise inference alone, and were asked about training."""
    refusals = [(one.subject, one.failure) for result in results.values() for one in result.results]
    refused = (way for way, why in refusals if isinstance(why, NotTaken) and why.why is Refusal.NOT_INFERENCE)
    return tuple(dict.fromkeys(refused))


def _find_line(case: Case, name: str) -> str:
    """The line of the program that computes a value; a write has none, only its name."""
    lines = map(str.strip, source(case).splitlines())
    return next((line for line in lines if line.startswith(f"{name} = ")), name)
