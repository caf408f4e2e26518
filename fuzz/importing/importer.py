"""Imports a user's module: each of its blocks as a case that repeats the block bit for bit."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from corpus import value_files
from fuzz.ask.question import Asker, Question, build_check, no_work
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.importing.dimensions import name_sizes
from fuzz.importing.numbers import add_numbers
from fuzz.importing.program import ImportedProgram, Untranslatable
from fuzz.importing.translate import KNOWN, translate
from fuzz.protocol import Hello, Message, Result
from fuzz.protocol.failures import ProcessLost
from fuzz.protocol.recording import (
    KeepValues,
    KeptValues,
    Loaded,
    LoadModule,
    NotRecorded,
    Recorded,
    RecordSubmodule,
    Repeat,
    Repeated,
    Submodule,
)
from fuzz.protocol.render import describe_failure
from generators.errors import CaseError, UserError
from generators.program import edits
from generators.program.case import Case, Values
from generators.program.emit import source
from generators.program.given import MOST_NUMBERS, VALUES_DIRECTORY, Given
from generators.program.type_check import check, prune
from generators.program.value_format import MOST_BYTES

_FEWEST = 3
"""Torch-level calls of a block that does not attend: a linear layer is no block."""


_LARGE_SHARE = 0.6
"""A worker that has used this share of its memory is replaced."""

_LARGE = 150
"""A campaign skips blocks with more calls than this if smaller blocks exist."""


class FactoryMissing(UserError):
    """The interpreter can't import the factory of a module."""


class BlockFailed(Exception):
    """A submodule can't be recorded or repeated; the text is one line."""


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Block:
    """A submodule as a case.

    case: None if there is none; the results of missing calls are inputs of it
    missing: calls that no case can express, counted by function and reason
    different: where the case differs from the submodule; "" if all bits agree
    reads: calls that turn the content of tensors into Python numbers, which the case keeps as constants
    within: functions that torch traces or calls specially, whose operations the case has without them
    constants: numbers among the arguments that the case keeps as constants, as torch does when it first sees a number
    """

    path: str  # "" for the whole module
    type: str
    calls: int
    case: Case | None
    missing: Counter[str]
    different: str = ""
    reads: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # paths of submodules that give an equal case

    @classmethod
    def without_case(cls, part: Submodule, *reasons: str) -> Self:
        return cls(part.path, part.type, part.calls, None, Counter(reasons))

    @property
    def name(self) -> str:
        return self.path or self.type


class ModuleImport(Asker):
    """A user's module in a worker of its own. Raises `UserError` if it can't be loaded."""

    def __init__(self, config: WorkerConfig, factory: str) -> None:
        self.factory, self.run = factory, ""
        self._config = config
        self._process = WorkerProcess(replace(config, factory=factory), PipeTransport())
        self._loaded_by: Hello | None = None
        self._rss_mib = 0.0
        try:
            self.loaded = self._load()
        except BaseException:
            self._process.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    @property
    def config(self) -> WorkerConfig:
        return self._config

    @property
    def hello(self) -> Hello:
        return self._process.start()

    def list_runs(self) -> tuple[str, ...]:
        """The ways people run a released model, the most telling first; "" alone for any other module."""
        return self._load(lists_runs=True).runs or ("",)

    def begin(self, run: str) -> None:
        """Load the module for one of these runs. Raises `UserError`."""
        self.run = run
        self.loaded = self._load()

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        """The answer about a part of the module, as it is. Raises `UserError`, and `WorkerFault`."""
        check = build_check(question)
        if self._rss_mib > _LARGE_SHARE * self.config.memory_mib:
            self._process.replace()
        self._load_if_lost()
        self._process.send(check)
        meanwhile()
        result = self._process.receive()
        if result.stage == "start" and self._process.hello is not self._loaded_by:
            # The process was lost before it began, and the new process, which got the request, had no module.
            self._load_if_lost()
            self._process.send(check)
            result = self._process.receive()
        self._rss_mib = result.rss_mib
        return result

    def _load_if_lost(self) -> None:
        if self._process.hello is None or self._process.hello is not self._loaded_by:
            self._load()

    def _load(self, *, lists_runs: bool = False) -> Loaded:
        request = LoadModule(self.factory, self.run, lists_runs)
        loaded = self._request(request, "loading the module", Loaded)
        self._loaded_by, self._rss_mib = self._process.hello, 0.0
        return loaded

    def _request(self, request: Message, stage: str, wanted: type[M]) -> M:
        if wanted is not Loaded:
            self._load_if_lost()
        answer = self._process.request(request, stage)
        if isinstance(answer, ProcessLost):
            if wanted is Loaded:
                raise UserError(f"{self.factory}: {describe_failure(answer)} while {stage}")
            self._load()  # for the next block
            raise BlockFailed(f"{self.factory}: {describe_failure(answer)} while {stage}")
        if isinstance(answer, NotRecorded):
            failed = (FactoryMissing if answer.is_missing else UserError) if wanted is Loaded else BlockFailed
            raise failed(f"{self.factory}: {answer.reason} (while {stage})")
        assert isinstance(answer, wanted)
        return answer

    def import_blocks(self, *, keeps_values: bool = False) -> list[Block]:
        """The whole module and its blocks. Of blocks whose programs differ in the numbers of inputs alone, the first.

        keeps_values: with the values of the first of them; drawn if these can't be kept, or the case does not repeat
            the block with them
        """
        found: dict[str, Block] = {}
        for part in self.choose_blocks():
            try:
                block = self._import_with_values(part) if keeps_values else None
                block = block or self.import_block(part)
            except BlockFailed as error:
                block = Block.without_case(part, str(error))
            key = _key_of(block.case) if block.case is not None else part.path
            found[key] = replace(found[key], also=(*found[key].also, block.name)) if key in found else block
        return list(found.values())

    def _import_with_values(self, part: Submodule) -> Block | None:
        try:
            block = self.import_block(part, keeps_values=True)
        except BlockFailed:
            return None
        return None if block.different else block

    def choose_blocks(self) -> list[Submodule]:
        """The whole module, and its blocks: the smallest submodules that attend, and their siblings."""
        parts = self.loaded.submodules
        attending = [part for part in parts if part.attends]
        smallest = [part for part in attending if not any(_is_inside(inner.path, part.path) for inner in attending)]
        parents = {part.path.rpartition(".")[0] for part in smallest if part.path}
        siblings = [part for part in parts if part.path and part.path.rpartition(".")[0] in parents]
        blocks = [part for part in siblings if part.attends or part.calls >= _FEWEST]
        return [part for part in parts if not part.path] + blocks

    def import_block(self, part: Submodule, *, keeps_values: bool = False) -> Block:
        """A submodule as a case. `keeps_values`: with the exact values of all inputs, in place of distributions.

        Raises `BlockFailed` if it can't be run by itself, or has too many values to keep.
        """
        request = RecordSubmodule(part.path, tuple(sorted(KNOWN)))
        recorded = self._request(request, f"recording {part.path or 'the module'}", Recorded)
        refused = dict[int, str]()
        while True:
            translation = translate(recorded, refused)
            program = translation.program
            block = Block(part.path, part.type, len(recorded.calls), None, program.missing, reads=recorded.reads)
            block = replace(block, within=tuple(dict.fromkeys(name for call in recorded.calls for name in call.within)))
            try:
                case = translation.case()
                check(case)
            except Untranslatable as error:
                return replace(block, missing=program.missing + Counter([str(error)]))
            except CaseError as error:
                call = translation.calls.get(error.place[1] or "")
                if call is None or call in refused:
                    return replace(block, missing=program.missing + Counter([str(error)]))
                refused[call] = error.mistake
                continue
            case, constants = add_numbers(case, recorded, refused)
            block = replace(block, constants=tuple(constants))
            case = prune(case)
            if not case.ops:
                return replace(block, missing=program.missing + Counter(["no call is left"]))
            case = name_sizes(case)
            if keeps_values:
                case = self._keep_values(case, program)
            return replace(block, case=case, different=self._compare(case, program))

    def _keep_values(self, case: Case, program: ImportedProgram) -> Case:
        """The case with the recorded values of its inputs, and as a given value's likeness its distribution."""
        names = {number: item.name for number, item in program.inputs.items()}
        inputs = {item.name for item in case.inputs if item.part is None}
        scratch = value_files.make_scratch()
        numbers = tuple(number for number, name in names.items() if name in inputs)
        request = KeepValues(numbers, str(scratch / VALUES_DIRECTORY), MOST_NUMBERS, MOST_BYTES)
        answer = self._request(request, "keeping its values", KeptValues)
        kept = {
            names[tensor.number]: Given(tensor.shape, tensor.dtype, tensor.numbers, tensor.sha256)
            for tensor in answer.tensors
        }
        return edits.map_inputs(
            case, lambda item: replace(item, values=replace(item.values, given=kept.get(item.name)))
        )

    def _compare(self, case: Case, program: ImportedProgram) -> str:
        numbers = {item.name: number for number, item in program.inputs.items()}
        made = {name: number for number, name in program.names.items()}
        request = Repeat(
            source(case),
            tuple((item.name, numbers[item.name]) for item in case.arguments),
            tuple((item.name, numbers[item.name]) for item in case.inputs if item.parameter),
            tuple(made[name] for name in case.returns),
            compares_gradients=not program.missing,
            own_values=edits.has_given(case),
            files=value_files.find_all(case),
        )
        return self._request(request, "repeating it as a case", Repeated).different


def _is_inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(f"{outer}."))


def describe_gaps(block: Block) -> str:
    """In one line: the calls that a case leaves out of a block, the calls whose numbers it keeps, and where it differs.
    Empty if it is the whole block."""
    parts = []
    if block.missing:
        verb = "left out" if block.case is not None else "not imported"
        parts.append(f"{verb}: {', '.join(f'{count}x {call}' for call, count in block.missing.most_common())}")
    if block.reads:
        parts.append(f"numbers read from tensors stay constants: {', '.join(block.reads)}")
    if block.within and block.case is not None:
        parts.append(f"as plain operations: {', '.join(block.within)}")
    if block.different:
        parts.append(f"not bit for bit: {block.different} differs")
    return f"{block.name}: {'; '.join(parts)}" if parts else ""


def _key_of(case: Case) -> str:
    """Equal for programs that differ only in the numbers of their inputs."""
    return edits.map_inputs(
        case, lambda item: replace(item, values=Values(item.values.kind, param=item.values.param))
    ).canonical()


def import_models(config: WorkerConfig, factories: Iterable[str]) -> dict[str, Case]:
    """The cases of the blocks of modules with their own values, by factory and name; stderr lists omissions.

    Raises `UserError` for a module without a case.
    """
    cases: dict[str, Case] = {}
    for factory in factories:
        with ModuleImport(config, factory) as module:
            blocks = module.import_blocks(keeps_values=True)
        lines = [*map(describe_gaps, blocks)]
        lines += [
            f"{block.name}: arguments stay constants: {', '.join(block.constants)}"
            for block in blocks
            if block.constants
        ]
        lines += [
            f"{block.name}: its values can't be kept, so like ones are drawn"
            for block in blocks
            if block.case is not None and not edits.has_given(block.case)
        ]
        for line in filter(None, lines):
            sys.stderr.write(f"{factory} {line}\n")
        fitting = [block for block in blocks if block.case is not None and not block.different]
        # A case of hundreds of operations takes minutes under all subjects.
        fitting = [block for block in fitting if block.calls <= _LARGE] or fitting
        if not fitting:
            raise UserError(f"{factory}: no block is imported")
        cases |= {f"{factory} {block.name}": block.case for block in fitting if block.case is not None}
    return cases
