"""Inductor's graph passes, for programs with dropout that draws numbers of its own: only there a pattern of attention with
dropout fires."""

from fuzz.check.subjects.passes import SUBJECT as PASSES
from fuzz.check.subjects.subject import Subject

SUBJECT = Subject("passes_random", PASSES.compile)
