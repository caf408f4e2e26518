"""The errors a user can cause. Their text is one line: what was wrong, where, and what would be right."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Bad usage, configuration or input; the command lines print it and exit with 2."""


class CaseError(UserError, ValueError):
    """A case that breaks a rule. `place`: the field of the case, and the name of the input or operation in it."""

    place: tuple[str, str] = ("", "")


def require(fact: bool, text: str) -> None:
    """Raises CaseError with this text unless the fact holds."""
    if not fact:
        raise CaseError(text)


@contextmanager
def checking(field: str, name: str = "") -> Iterator[None]:
    """Gives a CaseError that is raised within this place, if it has none yet."""
    try:
        yield
    except CaseError as error:
        if not error.place[0]:
            error.place = (field, name)
        raise
