"""Spares runs of the C++ compiler (docs/scale.md): builds the kernels of a graph as one file, and repeats no probe.

Inductor starts a compiler for each kernel. Of its 0.95 s, 0.38 s instantiate templates of torch's headers, which no
precompiled header holds, and 0.29 s read the symbols of torch's libraries for the linker (2.15.0, gcc 12). Here the
kernels of a graph are parts of one file, each in a namespace of its own, with Inductor's flags. Each becomes a library
of its own, with its own code alone. If they do not build so, Inductor builds each.

Users' programs have other kernels in Inductor's cache: the text of a joined kernel ends in a comment. So a check that
does not join, as those that confirm a finding, builds as users do, and so does a script of a report.

A joined kernel gets by with no include that it lacks alone. But it can't collide with a global name of a header.

At the first compilation of a process, Inductor compiles a probe for each vector instruction set; up to torch 2.14 it
also starts an interpreter that imports torch to load the probe. That takes 4 s of CPU time for each instruction set.
"""

import hashlib
import logging
import os
import re
import shlex
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fuzz.check.torch_api.torch_internals import find, intercept_for_good, require

_ADD, _WAIT = (("torch._inductor.async_compile", f"AsyncCompile.{name}") for name in ("cpp_pybinding", "wait"))
_LOAD = ("torch._inductor.codecache", "CppPythonBindingsCodeCache.load_pybinding_async")
_MARK = "\n// attnfuzz builds it with the other kernels of its graph\n"
_ENTRY = "PyInit_kernel"
_RENAMED = ("kernel", _ENTRY)
"""Global names that every file defines."""
_SHARED_LINE = re.compile(r"[ \t]*#[ \t]*(?:include[ \t].*|define PY_SSIZE_T_CLEAN)")
"""A line that all kernels of a file can share."""
_OTHER_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(?!pragma|ifdef Py_GIL_DISABLED|endif)")
"""A directive that may act beyond the namespace of its kernel."""
_MAX_KERNELS = 8
"""Kernels of a file. More save little, and one that does not build costs all of them a second build."""

_log = logging.getLogger(__name__)
_is_joining = False


_PROBE = "torch._inductor.cpu_vec_isa", "VecISA.check_build"
_CACHE = "torch._inductor.runtime.cache_dir_utils", "default_cache_dir"
_COMPILER = "torch._inductor.cpp_builder", "get_cpp_compiler"
_VERSION = "torch._inductor.cpp_builder", "get_compiler_version_info"


@dataclass(frozen=True)
class _Build:
    """A kernel that Inductor would build by `command`, from `source` to `target`.

    Its text is `head`, lines that can be shared, then `body`, then `later`, shared lines again, and `rest`.
    """

    command: tuple[str, ...]
    source: Path
    target: Path
    head: tuple[str, ...]
    body: str
    later: tuple[str, ...]
    rest: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler and its options, without files and libraries."""
        left_out = {str(self.source), str(self.target), "-o", "-shared"}
        return tuple(part for part in self.command if part not in left_out and not part.startswith(("-l", "-L")))

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(part for part in self.command if part.startswith(("-l", "-L")))


@dataclass(frozen=True)
class _Kernel:
    """A kernel of a module of Inductor's that runs. `load` returns its function, and builds it if it is not built."""

    load: Callable[[], Any]
    builders: list[Any]  # Inductor's own, if it is not built


def join(is_joining: bool) -> AbstractContextManager[object]:
    """While entered, kernels of a graph are built together, or as for users."""
    return mock.patch(f"{__name__}._is_joining", is_joining)


def install() -> None:
    """Let `join` act, and remember probes across processes. Without effect on a torch that lacks names that this needs.

    Successful probes are noted beside Inductor's precompiled headers, by torch, compiler, flags and code of the probe.
    """
    if None not in (find(*name) for name in (_ADD, _WAIT, _LOAD)):
        intercept_for_good(*_ADD, _add_kernel)
        intercept_for_good(*_WAIT, _wait_for_kernels)
    if None not in (find(*name) for name in (_PROBE, _CACHE, _COMPILER, _VERSION)):
        intercept_for_good(*_PROBE, _probe_once)


def _add_kernel(add: Callable[..., Any], compiler: Any, argtypes: list[str], source_code: str) -> Any:
    if not _is_joining:
        return add(compiler, argtypes, source_code)
    builders = list[Any]()
    return _Kernel(require(*_LOAD)(argtypes, source_code + _MARK, submit_fn=builders.append), builders)


def _wait_for_kernels(wait: Callable[..., Any], compiler: Any, scope: dict[str, Any]) -> None:
    kernels = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
    _build([build for kernel in kernels.values() for one in kernel.builders if (build := _read_build(one))])
    scope.update((name, kernel.load()) for name, kernel in kernels.items())
    wait(compiler, scope)


def _read_build(work: Any) -> _Build | None:
    """The build of a call of Inductor's `_worker_compile_cpp`; None if it is not one plain file."""
    try:
        (builder,) = work.args[1]
        command, target = tuple(shlex.split(builder.get_command_line())), Path(builder.get_target_file_path())
        (source,) = (Path(part) for part in command if part.endswith(".cpp"))
        lines = source.read_text(encoding="utf-8").splitlines()
    except (AttributeError, IndexError, ValueError, OSError):
        return None
    head = [*takewhile(lambda line: not line.strip() or _SHARED_LINE.fullmatch(line), lines)]
    body = [*takewhile(lambda line: not _SHARED_LINE.fullmatch(line), lines[len(head) :])]
    rest = lines[len(head) + len(body) :]
    later = [line for line in rest if _SHARED_LINE.fullmatch(line)]
    rest = [line for line in rest if line not in later]
    is_plain = "-shared" in command and not any(map(_OTHER_DIRECTIVE.match, (*body, *rest)))
    parts = tuple(filter(str.strip, head)), "\n".join(body), tuple(later), "\n".join(rest)
    return _Build(command, source, target, *parts) if is_plain else None


def _build(builds: list[_Build]) -> None:
    """Make the libraries that can be made together."""
    alike = defaultdict[object, list[_Build]](list)
    for build in builds:
        alike[build.flags, build.head, build.later].append(build)
    for group in alike.values():
        for first in range(0, len(group), _MAX_KERNELS):
            with suppress(OSError):  # A full disk, say: Inductor will tell.
                _build_file(group[first : first + _MAX_KERNELS])


def _build_file(builds: list[_Build]) -> None:
    flags, home = builds[0].flags, builds[0].target.parent
    libraries = _list_libraries(builds[0].libraries, flags[0], home.parent / "attnfuzz")
    with tempfile.TemporaryDirectory(dir=home) as name:
        scratch = Path(name)
        (scratch / "joint.cpp").write_text(_write_file(builds), encoding="utf-8")
        # A library that keeps the code of other kernels would fail to load for what these lack.
        (scratch / "exported").write_text("{ local: " + " ".join(f"{one}_*;" for one in _RENAMED) + " };")
        apart = ("-ffunction-sections", "-fdata-sections")
        if not _run([*flags, *apart, "-c", "joint.cpp", "-o", "joint.o"], scratch):
            return
        for number, build in enumerate(builds):
            entry = f"-Wl,--defsym={_ENTRY}={_ENTRY}_{number},--gc-sections,--version-script=exported"
            if _run([*flags, "-shared", "joint.o", "-o", "made.so", entry, *libraries], scratch):
                (scratch / "made.so").replace(build.target)


def _write_file(builds: list[_Build]) -> str:
    """One file of several, in which each line that is shared stands before and after the same parts as alone."""
    lines = [*builds[0].head]
    for number, build in enumerate(builds):
        lines += [*_open(number), build.body, *_CLOSED]
    lines += builds[0].later
    for number, build in enumerate(builds):
        lines += [*_open(number), build.rest, *_CLOSED]
    return "\n".join([*lines, ""])


def _open(number: int) -> list[str]:
    return [*(f"#define {name} {name}_{number}" for name in _RENAMED), f"namespace joint_{number} {{"]


_CLOSED = ("}", *(f"#undef {name}" for name in _RENAMED))


def _list_libraries(libraries: tuple[str, ...], compiler: str, home: Path) -> list[str]:
    """The libraries for the linker, with an empty one of the same name, in `home`, in place of each of torch's.

    A kernel then needs the library that the process has loaded, as it would, and the linker reads no symbols of it.
    """
    home.mkdir(exist_ok=True)
    torchs, others = list[str](), list[str]()
    for part in libraries:
        name = f"lib{part[2:]}.so"
        empty, is_torch = home / name, part.startswith(("-ltorch", "-lc10"))
        made = empty.with_suffix(f".{os.getpid()}")
        make = [compiler, "-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{name}", "-o", str(made)]
        if is_torch and not empty.exists() and _run(make, home):
            made.replace(empty)
        if is_torch and empty.exists():
            torchs.append(str(empty))
        else:
            others.append(part)
    return ["-Wl,--push-state,--no-as-needed", *torchs, "-Wl,--pop-state", *others]


def _run(command: list[str], directory: Path) -> bool:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        _log.info("%s: %s", shlex.join(command), done.stderr)
    return done.returncode == 0


def _probe_once(check: Callable[[Any, str], bool], isa: Any, code: str) -> bool:
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
