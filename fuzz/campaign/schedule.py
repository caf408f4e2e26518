"""Chooses the subjects under which a case runs, and hands out the numbers of cases."""

import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fuzz.campaign.options import Budget
from fuzz.subjects import INDUCTOR, SUBJECTS, SubjectSpec, find_abilities, get_spec, is_user_function
from generators.errors import UserError
from generators.program.case import Case
from generators.program.emit import is_random
from generators.program.portability import find_obstacle
from generators.program.settings import SETTINGS

FIRST_COMPILE = 5.0
"""Seconds of the first compilation of a subject that compiles C++. Such a subject first runs when its share of worker
time has reached this. Until then the cheap subjects run, which find most failures."""
BEFORE_FIRST_BUG = 3.0
"""`FIRST_COMPILE` is multiplied by this until the campaign has shown a bug, since two cases that take long to compile
occupy two workers for most of a minute. With two workers `inductor` then begins after 50 s."""

_PATIENCE = 8
"""The most cases that a subject passes over. Of 800 cases, 52 then run under `inductor`, with 103 operations; without
waiting 54, with 81."""
_MODULE_FACTOR = 2.0
"""The shares of public subjects of Inductor are multiplied by this in a campaign around a module: its user runs these,
and the graph passes alone took 44 of 53 runs in two minutes, when torch.compile took none."""


def choose_subjects(given: list[str], device: str = "cpu") -> tuple[str, ...]:
    """The subjects of `--subject`; the default subjects of the device if none is given.

    Raises `UserError` for a name that is neither built in nor `package.module:function`, and for a subject of another
    device.
    """
    for name in given:
        module, colon, function = name.partition(":")
        named = colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
        if name not in SUBJECTS and not named:
            raise UserError(
                f"unknown subject {name!r}: there are {', '.join(SUBJECTS)}, and package.module:function for your own"
            )
        if device not in get_spec(name).devices:
            raise UserError(f"subject {name!r} does not run on {device}, only on {', '.join(get_spec(name).devices)}")
    default = (name for name, spec in SUBJECTS.items() if device in spec.devices and device in spec.default)
    return tuple(dict.fromkeys(given)) or tuple(default)


def _list_always(specs: Mapping[str, SubjectSpec]) -> tuple[str, ...]:
    """The subjects that share no time with others, and functions of the user's; else the first subject."""
    if all(is_user_function(name) or spec.is_attention for name, spec in specs.items()):
        return tuple(specs)
    always = [name for name, spec in specs.items() if not spec.share]
    always += filter(is_user_function, specs)
    return tuple(always or list(specs)[:1])


class Schedule:
    """Chooses subjects so that each expensive subject takes its share of worker time and no more.

    A subject that compiles C++ and is due waits for a case with an operation that is new to it, at most `_PATIENCE`
    cases.
    """

    def __init__(self, subjects: tuple[str, ...], *, of_module: bool = False) -> None:
        """of_module: the campaign is about a user's module"""
        specs = {name: get_spec(name) for name in subjects}
        self.always = _list_always(specs)  # every case runs under these subjects
        self.needs_settings = all(specs[name].options for name in self.always)
        self.needs_shards = any(spec.sharded for spec in specs.values())
        self.public = tuple(name for name, spec in specs.items() if spec.public)
        expensive = {name: spec for name, spec in specs.items() if name not in self.always}
        self._spent = dict.fromkeys(expensive, 0.0)  # seconds by expensive subject
        self._met: dict[str, set[str]] = {name: set() for name in expensive}  # operations by expensive subject
        self._waited = Counter[str]()  # cases that a subject passed over since it was due
        self._total = 0.0
        self._specs = list(expensive.values())
        compiled = [name for name, spec in expensive.items() if spec.public and spec.backend == INDUCTOR]
        factors = dict.fromkeys(compiled, _MODULE_FACTOR) if of_module else {}
        self._shares = {name: spec.share * factors.get(name, 1) for name, spec in expensive.items()}
        self._first = tuple(compiled[:1])  # as users call torch.compile: the first in the table of subjects
        self._modes = tuple(name for name in compiled[1:] if not (specs[name].options or specs[name].warm))
        self.has_shown = False  # whether the campaign has shown a bug
        self._random_surrogate = next(
            (name for name, spec in expensive.items() if spec.is_surrogate and spec.random), None
        )
        self._has_compiled_cxx = self._is_compiling_first = False
        self.abilities: Mapping[str, Collection[str]] = {}  # of functions of the user's, as in `Hello`
        self._lock = threading.Lock()

    def _promises(self, subject: str, case: Case) -> bool:
        """Whether a subject promises to take such cases, as all but compilers of inference programs do."""
        abilities = find_abilities([subject], self.abilities)
        return abilities is None or not find_obstacle(case, abilities)

    def subjects_for_module(self, case: Case, turn: int) -> tuple[str, ...]:
        """The subjects of a block of the user's module: first the cheap subjects and torch.compile as users call it, at
        the second turn the other modes of torch.compile that take it."""
        modes = tuple(s for s in self._modes if get_spec(s).dynamic or self._takes(get_spec(s), case))
        return (modes or self.always) if turn else (*self.always, *self._first)

    def subjects_for(self, case: Case, *, targeted: bool = False) -> tuple[str, ...]:
        """The subjects of a case: all cheap subjects, at most one expensive compiler that is due, and each
        attention function that is due.

        targeted: the case was chosen for its coverage. With active dropout and a single call it runs under
        `passes_random` instead of `passes`, because patterns with dropout do not match in eager's random stream.
        Later calls of a case need eager's stream.
        """
        if targeted and self._random_surrogate is not None and is_random(case) and not case.calls:
            return tuple(
                self._random_surrogate if get_spec(subject).is_surrogate else subject for subject in self.always
            )
        due: list[str] = []
        first_compile = FIRST_COMPILE * (1.0 if self.has_shown else BEFORE_FIRST_BUG)
        with self._lock:
            for subject, spent in self._spent.items():
                spec = get_spec(subject)
                first = first_compile if spec.needs_cxx and not spent else 0.0
                is_due = spent + first < self._shares[subject] * self._total and self._takes(spec, case)
                # The first compilation precompiles headers for all, so other workers would only wait for its lock.
                if spec.needs_cxx and not self._has_compiled_cxx and self._is_compiling_first:
                    continue
                if is_due and (_has_attention(spec, case) if spec.is_attention else not due):
                    if spec.needs_cxx and self._awaits_news(subject, case):
                        continue
                    due.append(subject)
                    self._is_compiling_first = self._is_compiling_first or spec.needs_cxx
        # Without any subject that takes the case, the first tells why.
        return (*(name for name in self.always if self._promises(name, case)), *due) or self.always[:1]

    def _takes(self, spec: SubjectSpec, case: Case) -> bool:
        """Whether a subject can show a failure of this case that other subjects don't.

        | subject             | takes                                                                    |
        |---------------------|--------------------------------------------------------------------------|
        | symbolic sizes      | cases with symbolic sizes; all cases if the campaign has no static form  |
        | own random numbers  | random cases                                                             |
        | recomputes          | training                                                                 |
        | exported program    | inference; compilers that are no part of torch: cases without an obstacle |
        | settings            | cases with settings that act on it                                       |
        """
        return not (
            (spec.dynamic and not case.dynamic and replace(spec, dynamic=False) in self._specs)
            or (spec.random and not is_random(case))
            or (spec.recomputes and not case.training)
            or (spec.is_exported and case.training)
            or (spec.is_foreign and not self._promises(spec.backend, case))
            or (
                spec.options
                and not any(SETTINGS[name].in_graph_passes or not spec.is_surrogate for name, _ in case.settings)
            )
        )

    def _awaits_news(self, subject: str, case: Case) -> bool:
        """Whether a subject that is due has judged all operations of a case, and waits for others."""
        is_waiting = self._met[subject] >= {op.kind for op in case.ops} and self._waited[subject] < _PATIENCE
        self._waited[subject] = self._waited[subject] + 1 if is_waiting else 0
        return is_waiting

    def add_time(
        self, asked: Collection[str], seconds: float, by_subject: Mapping[str, float], kinds: Collection[str] = ()
    ) -> None:
        """Count the time of a case. `asked`: its subjects; `by_subject`: those with a verdict; `kinds`: of its
        operations."""
        with self._lock:
            if any(get_spec(subject).needs_cxx for subject in asked):
                self._is_compiling_first = False
                self._has_compiled_cxx = self._has_compiled_cxx or any(get_spec(one).needs_cxx for one in by_subject)
            self._total += seconds
            for subject in self._spent.keys() & by_subject.keys():
                self._spent[subject] += by_subject[subject]
                self._met[subject].update(kinds)


def _has_attention(spec: SubjectSpec, case: Case) -> bool:
    """Whether an attention function may take the case. Backends of torch also take what a rewrite makes attention."""
    return bool(case.contracts) or (bool(spec.sdpa) and any(op.kind == "softmax" for op in case.ops))


@dataclass(frozen=True, slots=True)
class Job:
    """A case that is to be judged."""

    index: int
    case: Case
    subjects: tuple[str, ...]
    chosen: str = ""  # the id of the targeted case from which it was made, which is judged once


class CaseNumbers:
    """Case numbers, each handed out once. After a restart the numbers without a verdict come first."""

    def __init__(self, cursor: int, beyond: frozenset[int], budget: Budget) -> None:
        """cursor: the first number that is not judged; beyond: later numbers that are judged."""
        self.returned = deque[Job]()  # jobs whose worker has no machine, for other workers
        self._cursor, self._beyond = cursor, set(beyond)
        self._next = cursor
        self._left = budget.cases
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The next number; None when the budget of cases is spent."""
        with self._lock:
            if self._left == 0:
                return None
            while self._next in self._beyond:
                self._next += 1
            self._left = None if self._left is None else self._left - 1
            self._next += 1
            return self._next - 1

    @property
    def has_next(self) -> bool:
        return self._left != 0 or bool(self.returned)

    def finish(self, index: int) -> tuple[int, frozenset[int]]:
        """Note that a case has its verdict; gives cursor and beyond, to be stored with it."""
        with self._lock:
            self._beyond.add(index)
            while self._cursor in self._beyond:
                self._beyond.remove(self._cursor)
                self._cursor += 1
            return self._cursor, frozenset(self._beyond)
