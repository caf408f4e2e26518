"""torch.compile as users have it, for programs with dropout: it draws numbers of its own, not eager's."""

from fuzz.check.subjects.inductor import SUBJECT as INDUCTOR
from fuzz.check.subjects.subject import Subject

SUBJECT = Subject("inductor_random", INDUCTOR.compile)
