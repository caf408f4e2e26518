"""The errors a user can cause. Their text is a single line: the mistake, its place, and what would be right."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from generators.reasons import Reason


class UserError(Exception):
    """A mistake in usage, configuration or input. Command lines print it and exit with 2."""


class UserErrors(UserError):
    """Several mistakes. Each argument is the text of a mistake."""

    def __str__(self) -> str:
        return "; ".join(self.args)


class CaseError(UserError, ValueError):
    """A case that breaks a rule.

    mistake: the text without the name of the operation; by default all of it
    row: its row of the table of reasons, None for that of the file that raises it
    place: the field of the case, and the name of the input or operation in it
    """

    place: tuple[str, str] = ("", "")

    def __init__(self, text: str, mistake: str = "", reason: Reason | None = None) -> None:
        super().__init__(text)
        self.mistake, self.row = mistake or text, reason


def require(fact: bool, text: str, reason: Reason | None = None) -> None:
    """Raises CaseError with this text and reason unless the fact holds."""
    if not fact:
        raise CaseError(text, reason=reason)


def require_of(op: str, fact: bool, mistake: str, reason: Reason | None = None) -> None:
    """Raises CaseError about an operation, and its place, unless the fact holds."""
    if not fact:
        error = CaseError(f"op {op!r}: {mistake}", mistake, reason)
        error.place = ("ops", op)
        raise error


def require_word(record: object, field: str, words: Collection[Any], reason: Reason | None = None) -> None:
    """Raises CaseError unless the field has one of these words."""
    given = getattr(record, field)
    require(given in words, f"{field} is {given!r}, expected one of {', '.join(filter(None, words))}", reason)


def accepts(check: Callable[..., object], *arguments: Any) -> bool:
    """Whether `check(*arguments)` raises no CaseError."""
    try:
        check(*arguments)
    except CaseError:
        return False
    return True


@contextmanager
def add_place(field: str, name: str = "", said: str = "") -> Iterator[None]:
    """Sets the place of a CaseError that is raised within, unless its place is set. `said`: text that comes before its
    own, which then is of this place."""
    try:
        yield
    except CaseError as error:
        told = CaseError(f"{said}: {error}", error.mistake, error.row) if said else error
        told.place = error.place if error.place[0] and not said else (field, name)
        raise told from None
