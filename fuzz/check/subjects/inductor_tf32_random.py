"""torch.compile with TF32 allowed, for programs with dropout that draws numbers of its own: on CUDA no pattern of attention
with dropout takes float32 otherwise."""

from fuzz.check.subjects.inductor import SUBJECT as INDUCTOR
from fuzz.check.subjects.subject import Subject

SUBJECT = Subject("inductor_tf32_random", INDUCTOR.compile, tf32=True)
