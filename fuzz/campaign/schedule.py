"""Which subjects a case meets, and which case comes next."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fuzz.campaign.options import Budget
from fuzz.protocol import EAGER, Check
from fuzz.subjects import SUBJECTS, get_spec, is_user_function
from generators.errors import UserError
from generators.program.case import Case
from generators.program.emit import is_random
from generators.program.settings import SETTINGS

FIRST_COMPILE = 5.0
"""Seconds that a subject is taken to need for its first case if it compiles C++: until its share of worker time is that
much, the cheap subjects run, which find most."""


def choose_subjects(given: list[str], device: str = "cpu") -> tuple[str, ...]:
    """The subjects of a campaign from what `--subject` said; the default ones of the device when it said nothing.

    Raises `UserError` for a name that is neither built in nor `package.module:function`, and for another device's.
    """
    known = [name for name in SUBJECTS if name != EAGER]
    for name in given:
        module, colon, function = name.partition(":")
        named = colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
        if name not in known and not named:
            raise UserError(
                f"unknown subject {name!r}: there are {', '.join(known)}, and package.module:function for your own"
            )
        if device not in get_spec(name).devices:
            raise UserError(f"subject {name!r} does not run on {device}, only on {', '.join(get_spec(name).devices)}")
    default = (name for name, spec in SUBJECTS.items() if device in spec.devices and device in spec.default)
    return tuple(dict.fromkeys(given)) or tuple(default)


class Schedule:
    """Hands out subjects so that the expensive ones take their share of worker time and no more."""

    def __init__(self, subjects: tuple[str, ...]) -> None:
        always = tuple(s for s in subjects if not get_spec(s).share) + tuple(s for s in subjects if is_user_function(s))
        attention = all(get_spec(s).is_attention or is_user_function(s) for s in subjects)
        self.always = subjects if attention else always or subjects[:1]
        self.sometimes = tuple(s for s in subjects if s not in self.always)
        self._random_proxy = next((s for s in self.sometimes if get_spec(s).is_proxy and get_spec(s).random), None)
        self.needs_settings = all(get_spec(s).options for s in self.always)
        self.public = tuple(s for s in subjects if get_spec(s).public)
        self._spent = dict.fromkeys(self.sometimes, 0.0)
        self._total = 0.0
        self._lock = threading.Lock()

    def subjects_for(self, case: Case, *, targeted: bool = False) -> tuple[str, ...]:
        """What `case` meets: of the expensive subjects one that compiles it, and all that compute its attention. One
        that is `targeted` at something meets what that takes: in eager's random stream no pattern with dropout fires.
        Further calls draw from that stream alone.
        """
        if targeted and self._random_proxy is not None and is_random(case) and not case.calls:
            return tuple(self._random_proxy if get_spec(subject).is_proxy else subject for subject in self.always)
        due: list[str] = []
        with self._lock:
            for subject in self.sometimes:
                spec = get_spec(subject)
                first = FIRST_COMPILE if spec.needs_cxx and not self._spent[subject] else 0.0
                if self._spent[subject] + first >= spec.share * self._total:
                    continue
                has_static_form = replace(spec, dynamic=False) in map(get_spec, self.sometimes)
                if spec.dynamic and not case.dynamic and has_static_form:
                    continue
                if (spec.random and not is_random(case)) or (spec.recomputes and not case.training):
                    continue
                if spec.is_exported and case.training:
                    continue
                if spec.options and not any(SETTINGS[name].passes or not spec.is_proxy for name, _ in case.settings):
                    continue
                if case.contracts if spec.is_attention else not due:
                    due.append(subject)
        return (*self.always, *due)

    def add_time(self, seconds: float, by_subject: dict[str, float]) -> None:
        """Note what a case took in all, and under each subject."""
        with self._lock:
            self._total += seconds
            for subject, part in by_subject.items():
                if subject in self._spent:
                    self._spent[subject] += part


@dataclass(frozen=True, slots=True)
class Job:
    """A case on its way to be judged. `chosen`: the id of the targeted case it was made of, which is judged once."""

    index: int
    case: Case
    check: Check
    chosen: str = ""


class CaseNumbers:
    """Case numbers, each handed out once; those handed out and never judged come first after a restart."""

    def __init__(self, cursor: int, beyond: frozenset[int], budget: Budget) -> None:
        """`cursor`: the first number not judged; `beyond`: those after it that are."""
        self._cursor, self._beyond = cursor, set(beyond)
        self._next = cursor
        self._left = budget.cases
        self._returned: list[int] = []
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The next number; None when the budget of cases is spent."""
        with self._lock:
            if self._returned:
                return self._returned.pop(0)
            if self._left == 0:
                return None
            while self._next in self._beyond:
                self._next += 1
            self._left = None if self._left is None else self._left - 1
            self._next += 1
            return self._next - 1

    def give_back(self, indices: Iterable[int]) -> None:
        """Let other workers have these numbers."""
        with self._lock:
            self._returned += indices

    @property
    def has_next(self) -> bool:
        """Whether there are cases to hand out."""
        return self._left != 0 or bool(self._returned)

    def finish(self, index: int) -> tuple[int, frozenset[int]]:
        """Note that `index` has its verdict; gives cursor and beyond, to be stored with it."""
        with self._lock:
            self._beyond.add(index)
            while self._cursor in self._beyond:
                self._beyond.remove(self._cursor)
                self._cursor += 1
            return self._cursor, frozenset(self._beyond)
