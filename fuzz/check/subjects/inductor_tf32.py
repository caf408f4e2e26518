"""torch.compile with TF32 allowed, without which Inductor fuses no float32 attention on CUDA."""

from fuzz.check.subjects.inductor import SUBJECT as INDUCTOR
from fuzz.check.subjects.subject import Subject

SUBJECT = Subject("inductor_tf32", INDUCTOR.compile, tf32=True)
