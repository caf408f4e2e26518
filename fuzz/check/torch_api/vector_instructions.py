"""Remembers across processes for which vector instruction sets the C++ compiler builds loadable code.

At the first compilation of a process, Inductor compiles a probe for each instruction set; up to torch 2.14 it also
starts an interpreter that imports torch to load the probe. That takes 4 s of CPU time for each instruction set.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fuzz.check.torch_api.torch_internals import find, intercept_for_good, require

_ISA = "torch._inductor.cpu_vec_isa", "VecISA.check_build"
_CACHE = "torch._inductor.runtime.cache_dir_utils", "default_cache_dir"
_COMPILER = "torch._inductor.cpp_builder", "get_cpp_compiler"
_VERSION = "torch._inductor.cpp_builder", "get_compiler_version_info"


def remember_vector_instructions() -> None:
    """Keep successful probes beside Inductor's precompiled headers, by torch, compiler, flags and code of the probe.

    Without effect on a torch that lacks a name that this needs.
    """
    if None not in (find(*name) for name in (_ISA, _CACHE, _COMPILER, _VERSION)):
        intercept_for_good(*_ISA, _check_once)


def _check_once(check: Callable[[Any, str], bool], isa: Any, code: str) -> bool:
    cache, compiler, version = (require(*name) for name in (_CACHE, _COMPILER, _VERSION))
    command = compiler()
    parts = (torch.__version__, torch.__file__, command, version(command), isa.build_arch_flags(), code)
    note = Path(cache(), "attnfuzz", hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest())
    works = note.exists() or check(isa, code)
    with suppress(OSError):  # Without a note the next process probes again.
        if works:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return works
