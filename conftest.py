"""`pytest` here also replays the case files of the corpus. Without a GPU, Triton interprets its kernels."""

import atexit
import os
import shutil
import tempfile

import torch

pytest_plugins = ["fuzz.pytest_plugin", "pytester"]

if not torch.cuda.is_available():
    # Read whenever a module that has kernels is imported, Triton's own among them: earlier than by any test.
    os.environ["TRITON_INTERPRET"] = "1"

if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    # One for all processes of the run: Inductor's first compile into a new directory takes 20 s.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="attnfuzz-tests-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
