"""Kernels of a graph are built as one file, and compute what they compute when Inductor builds each by itself."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.exc import InductorError

from fuzz.check.torch_api import kernel_builds
from fuzz.check.torch_api.settings import configure_torch
from fuzz.check.torch_api.torch_internals import wrap

pytestmark = pytest.mark.compiles


def attend(x: torch.Tensor) -> torch.Tensor:
    """Three kernels on a CPU, around two products."""
    return ((x.sin() @ x.T).softmax(-1) @ x).cumsum(0).exp()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that build kernels together."""
    configure_torch()
    commands, run = list[list[str]](), kernel_builds._run

    def note(command: list[str], directory: Path) -> bool:
        commands.append(command)
        return run(command, directory)

    monkeypatch.setattr(kernel_builds, "_run", note)
    return commands


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    """Compiles from nothing."""

    def run(is_joining: bool = True) -> torch.Tensor:
        torch._dynamo.reset()
        CppPythonBindingsCodeCache.cache_clear()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        with kernel_builds.join(is_joining):
            result: torch.Tensor = torch.compile(attend, dynamic=False)(x)
        torch.testing.assert_close(result, attend(x))
        return result

    return run


def test_kernels_are_one_file(built: list[list[str]], compute: Callable[..., torch.Tensor]) -> None:
    with _own_builds() as alone:
        compute()
    assert sum("joint.cpp" in command for command in built) == 1
    assert sum("joint.o" in command and "-shared" in command for command in built) >= 3
    assert not alone


@pytest.mark.parametrize("step", ["-c", "-shared"])
def test_kernels_that_do_not_build_together_are_built_alone(
    compute: Callable[..., torch.Tensor], built: list[list[str]], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    together, run = compute(), kernel_builds._run
    monkeypatch.setattr(kernel_builds, "_run", lambda command, place: step not in command and run(command, place))
    with _own_builds() as alone:
        assert torch.equal(together, compute())
    assert len(alone) >= 3


@contextmanager
def _own_builds() -> Iterator[list[str]]:
    """The kernels that Inductor builds itself."""
    commands = list[str]()

    def make(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_note(command: str, cwd: str) -> Any:
            commands.extend([command] * ("-shared" in command.split()))
            return run(command, cwd)

        return run_and_note

    with wrap("torch._inductor.cpp_builder", "run_compile_cmd", make):
        yield commands


def test_an_error_of_the_compiler_is_inductors(built: list[list[str]], compute: Callable[..., torch.Tensor]) -> None:
    def spoil(load: Callable[..., Any]) -> Callable[..., Any]:
        return lambda argtypes, text, **options: load(argtypes, text.replace("for(", "four("), **options)

    with (
        wrap("torch._inductor.codecache", "CppPythonBindingsCodeCache.load_pybinding_async", spoil),
        pytest.raises(InductorError, match="four"),
    ):
        compute()


def test_without_joining_inductor_builds_each(built: list[list[str]], compute: Callable[..., torch.Tensor]) -> None:
    with _own_builds() as alone:
        joined, each = compute(), compute(is_joining=False)
    assert torch.equal(joined, each)
    assert len(alone) >= 3


BINDING = """
#include <sstream>
extern "C" void* PyInit_kernel() { return reinterpret_cast<void*>(kernel); }
"""
"""As Inductor's bindings, which follow a kernel, it has includes of its own."""
KERNELS = {
    "complete": '#include <vector>\nextern "C" int kernel() { return std::vector<int>(3).size(); }',
    "forgets": 'extern "C" int kernel() { return std::vector<int>(3).size(); }',
    "is_early": '#include <vector>\nextern "C" int kernel() { std::ostringstream(); return 0; }',
    "lacks": '#include <vector>\nextern "C" int nowhere();\nextern "C" int kernel() { return nowhere(); }',
}


@pytest.mark.parametrize(
    ("names", "loadable"),
    [
        (("complete", "complete"), [True, True]),
        (("complete", "forgets"), [True, False]),
        (("complete", "is_early"), [False, False]),  # Inductor then builds each
        (("complete", "lacks"), [True, False]),
    ],
)
def test_a_joined_kernel_fails_where_it_fails_alone(
    tmp_path: Path, names: tuple[str, ...], loadable: list[bool]
) -> None:
    works = []
    for number, name in enumerate(names):
        source, target = tmp_path / f"{number}.cpp", tmp_path / f"{number}.so"
        source.write_text(KERNELS[name] + BINDING)
        command = f"g++ {source} -shared -fPIC -o {target}"
        builder = SimpleNamespace(get_command_line=lambda line=command: line, get_target_file_path=lambda at=target: at)
        works.append(SimpleNamespace(args=(None, (builder,))))
    kernel_builds._build([build for work in works if (build := kernel_builds._read_build(work))])
    assert [_is_loadable(tmp_path / f"{number}.so") for number in range(len(names))] == loadable


def _is_loadable(library: Path) -> bool:
    try:
        return hasattr(ctypes.CDLL(str(library), os.RTLD_NOW), "PyInit_kernel")
    except OSError:
        return False
