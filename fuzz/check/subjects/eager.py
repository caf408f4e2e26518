"""The module as it is: must always agree with itself, so it checks the checker."""

from fuzz.check.subjects.subject import Subject

SUBJECT = Subject("eager")
