"""Stub."""

from generators.case import Case


def stand_in(_case: Case) -> str | None:
    """None."""
    return None
