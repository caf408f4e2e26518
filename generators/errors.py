"""The errors a user can cause. Their text is one line: what was wrong, where, and what would be right."""

from typing import Self


class UserError(Exception):
    """Bad usage, configuration or input; the command lines print it and exit with 2."""


class CaseError(UserError, ValueError):
    """A case that breaks a rule. `place`: the field of the case, and the name of the input or operation in it."""

    place: tuple[str, str] = ("", "")

    def at(self, field: str, name: str = "") -> Self:
        """The error with its place, if it has none yet."""
        if not self.place[0]:
            self.place = (field, name)
        return self
