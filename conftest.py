"""`pytest` here also replays the case files of the corpus. Without a GPU, Triton interprets its kernels."""

import os

import torch

pytest_plugins = ["fuzz.pytest_plugin", "pytester"]

if not torch.cuda.is_available():
    # Read whenever a module that has kernels is imported, Triton's own among them: earlier than by any test.
    os.environ["TRITON_INTERPRET"] = "1"
