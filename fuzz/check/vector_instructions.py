"""Remembers, for all processes, for which vector instructions the C++ compiler builds code that loads.

Inductor asks at its first compilation in each process: it compiles a probe for each instruction set, and up to torch
2.14 starts an interpreter that imports torch to load it. That takes 4 s of CPU time for each instruction set.
"""

import functools
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._inductor import cpp_builder
from torch._inductor.cpu_vec_isa import VecISA
from torch._inductor.runtime import cache_dir_utils


def remember_vector_instructions() -> None:
    """Keep successful probes beside Inductor's precompiled headers, by torch, compiler, flags and code of the probe."""
    check = VecISA.check_build

    @functools.wraps(check)
    def check_once(isa: Any, code: str) -> bool:
        command = cpp_builder.get_cpp_compiler()
        compiler = (command, cpp_builder.get_compiler_version_info(command))
        parts = (torch.__version__, torch.__file__, *compiler, isa.build_arch_flags(), code)
        note = Path(
            cache_dir_utils.default_cache_dir(),
            "attnfuzz",
            hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest(),
        )
        return note.exists() or _note(note, check(isa, code))

    VecISA.check_build = check_once  # type: ignore[assignment, method-assign]


def _note(note: Path, works: bool) -> bool:
    with suppress(OSError):  # Without a note the next process probes again.
        if works:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return works
