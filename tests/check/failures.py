"""What tests ask of a failure."""

from typing import Any

from fuzz.protocol.failures import Failure


def is_failure(failure: Failure | None, kind: str, **fields: Any) -> bool:
    """Whether a failure is of that kind and has these fields, among others."""
    if failure is None or failure.kind != kind:
        return False
    return all(getattr(failure, name) == value for name, value in fields.items())
