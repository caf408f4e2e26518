"""The errors a user can cause. Their text is one line: what was wrong, where, and what would be right."""


class UserError(Exception):
    """Bad usage, configuration or input; the command lines print it and exit with 2."""


class CaseError(UserError, ValueError):
    """A case that breaks a rule."""
