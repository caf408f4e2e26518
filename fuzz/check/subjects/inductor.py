"""torch.compile as users call it."""

import torch

from fuzz.check.subjects.subject import Subject

SUBJECT = Subject(
    "inductor", compile=lambda module, dynamic: torch.compile(module, backend="inductor", dynamic=dynamic)
)
