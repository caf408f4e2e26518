"""Builds the C++ kernels of a graph as one file.

Inductor starts a compiler for each kernel. Of its 0.95 s, 0.38 s instantiate templates of torch's headers, which no
precompiled header holds, and 0.29 s read the symbols of torch's libraries for the linker (2.15.0, gcc 12). Here the
kernels of a graph are parts of one file, each in a namespace of its own, with the flags that Inductor gives. Each
becomes the library that Inductor expects. If they don't build so, Inductor builds each by itself, as for users. Only
kernels with the same includes are joined, so that no kernel gets by with what another one includes.
"""

import functools
import importlib
import os
import re
import shlex
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.check.torch_api.torch_internals import find, require

_ASYNC, _CODE = "torch._inductor.async_compile", "torch._inductor.codecache"
_LOAD = "CppPythonBindingsCodeCache.load_pybinding_async"
_RENAMED = ("kernel", "PyInit_kernel")
"""What each file of Inductor's defines for the linker."""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include[ \t].*|define PY_SSIZE_T_CLEAN)$", re.MULTILINE)
_PLAIN = re.compile(r"^[ \t]*#[ \t]*(?!pragma|ifdef Py_GIL_DISABLED|endif)", re.MULTILINE)
"""Other directives may act beyond their namespace."""
_MOST = 8
"""Kernels of a file. More save little, and one that does not build costs all of them a second build."""


@dataclass(frozen=True)
class _Build:
    """A kernel that Inductor would build by `command`, from `source` to `target`."""

    command: tuple[str, ...]
    source: Path
    target: Path
    text: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler, and what it is told about the code."""
        left_out = {str(self.source), str(self.target), "-o", "-shared"}
        return tuple(part for part in self.command if part not in left_out and not part.startswith(("-l", "-L")))

    @property
    def includes(self) -> tuple[str, ...]:
        return tuple(line.strip() for line in _INCLUDE.findall(self.text))

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(part for part in self.command if part.startswith(("-l", "-L")))


@dataclass(frozen=True)
class _Kernel:
    """A kernel of a graph whose module is being run. `load()`: its function; `works`: what builds it, unless it is."""

    load: Callable[[], Any]
    works: list[Any]


def join_builds() -> None:
    """Build the kernels of each graph together from now on: once per process.

    Without effect on a torch that lacks a name that this needs.
    """
    names = [(_ASYNC, "AsyncCompile.cpp_pybinding"), (_ASYNC, "AsyncCompile.wait"), (_CODE, _LOAD)]
    add, wait, load = (find(*name) for name in names)
    if add is None or wait is None or load is None or hasattr(add, "__wrapped__"):
        return

    @functools.wraps(add)
    def add_kernel(_: Any, argtypes: list[str], source_code: str) -> _Kernel:
        works = list[Any]()
        return _Kernel(require(_CODE, _LOAD)(argtypes, source_code, submit_fn=works.append), works)

    @functools.wraps(wait)
    def wait_for_kernels(self: Any, scope: dict[str, Any]) -> None:
        kernels = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
        _build([build for kernel in kernels.values() for work in kernel.works if (build := _read_build(work))])
        scope.update((name, kernel.load()) for name, kernel in kernels.items())
        wait(self, scope)

    compiler: Any = importlib.import_module(_ASYNC).AsyncCompile
    compiler.cpp_pybinding, compiler.wait = add_kernel, wait_for_kernels


def _read_build(work: Any) -> _Build | None:
    """What a work of Inductor's builds; None if it is more than one plain file."""
    try:
        (builder,) = work.args[1]
        command, target = tuple(shlex.split(builder.get_command_line())), Path(builder.get_target_file_path())
        (source,) = (Path(part) for part in command if part.endswith(".cpp"))
    except (AttributeError, IndexError, ValueError):
        return None
    text = source.read_text()
    is_plain = "-shared" in command and not _PLAIN.search(_INCLUDE.sub("", text))
    return _Build(command, source, target, text) if is_plain else None


def _build(builds: list[_Build]) -> None:
    """Make the libraries that can be made together."""
    alike = defaultdict[object, list[_Build]](list)
    for build in builds:
        alike[build.flags, build.includes].append(build)
    for group in alike.values():
        for first in range(0, len(group), _MOST):
            with suppress(OSError):  # A full disk, say: Inductor will tell.
                _build_file(group[first : first + _MOST])


def _build_file(builds: list[_Build]) -> None:
    flags, (compiler, *_), home = builds[0].flags, builds[0].command, builds[0].target.parent
    libraries = _list_stubs(builds[0].libraries, compiler, home.parent)
    with tempfile.TemporaryDirectory(dir=home) as name:
        scratch = Path(name)
        (scratch / "joint.cpp").write_text(_join(builds))
        if not _run([*flags, "-c", "joint.cpp", "-o", "joint.o"], scratch):
            return
        for number, build in enumerate(builds):
            entry = f"-Wl,--defsym={_RENAMED[1]}={_RENAMED[1]}_{number}"
            if _run([compiler, "-shared", "joint.o", "-o", "made.so", entry, *libraries], scratch):
                (scratch / "made.so").replace(build.target)


def _join(builds: list[_Build]) -> str:
    """One file of several. Includes come first, since they are nobody's."""
    lines = [*builds[0].includes]
    for number, build in enumerate(builds):
        lines += [f"#define {name} {name}_{number}" for name in _RENAMED]
        lines += [f"namespace joint_{number} {{", _INCLUDE.sub("", build.text), "}"]
        lines += [f"#undef {name}" for name in _RENAMED]
    return "\n".join([*lines, ""])


def _list_stubs(libraries: tuple[str, ...], compiler: str, home: Path) -> list[str]:
    """The arguments of the linker, with an empty library of the same name in place of each of torch's.

    A kernel then needs the library that the process has loaded, as it would, and the linker reads no symbols of it.
    """
    arguments = ["-Wl,--no-as-needed"]
    for part in libraries:
        name = f"lib{part[2:]}.so"
        stub, is_torch = home / name, part.startswith(("-ltorch", "-lc10"))
        made = stub.with_suffix(f".{os.getpid()}")
        make = [compiler, "-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{name}", "-o", str(made)]
        if is_torch and not stub.exists() and _run(make, home):
            made.replace(stub)
        arguments.append(str(stub) if is_torch and stub.exists() else part)
    return arguments


def _run(command: list[str], directory: Path) -> bool:
    return subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode == 0
