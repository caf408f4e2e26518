"""Traced by Dynamo and AOTAutograd, then run operation by operation: separates their faults from Inductor's."""

import torch

from fuzz.check.subjects.subject import Subject

SUBJECT = Subject(
    "aot_eager", compile=lambda module, dynamic: torch.compile(module, backend="aot_eager", dynamic=dynamic)
)
