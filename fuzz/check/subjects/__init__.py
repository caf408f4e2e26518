"""The ways to run a case. One file each: a module here that defines `SUBJECT` is a subject, and nothing else lists it."""

import importlib
import pkgutil

from fuzz.check.subjects.subject import Subject, SubjectError, named

__all__ = ["Subject", "SubjectError", "available", "find", "named"]


def available(device: str = "cpu") -> dict[str, Subject]:
    """The subjects of this package that run on `device`, by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        subject = getattr(importlib.import_module(f"{__name__}.{info.name}"), "SUBJECT", None)
        if isinstance(subject, Subject) and device in subject.kind.devices:
            found[subject.name] = subject
    return found


def find(name: str) -> Subject:
    """The subject called `name`, or the function `package.module:function`. Raises `SubjectError`."""
    if ":" in name:
        return named(name)
    subjects = available()
    if name not in subjects:
        raise SubjectError(
            f"unknown subject {name!r}: choose from {', '.join(sorted(subjects))}, or package.module:function"
        )
    return subjects[name]
