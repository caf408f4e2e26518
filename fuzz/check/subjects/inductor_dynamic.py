"""torch.compile with every size symbolic."""

import torch

from fuzz.check.subjects.subject import Subject

SUBJECT = Subject(
    "inductor_dynamic", compile=lambda module, _dynamic: torch.compile(module, backend="inductor", dynamic=True)
)
