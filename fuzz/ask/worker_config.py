"""How a worker is started: its interpreter, device and limits, from the options of a command line."""

import os
import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.durations import parse_duration
from fuzz.subjects import get_spec, is_user_function
from generators.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: workers import `fuzz` from here."""

MIN_MEMORY_MIB = 512
MIN_FILE_MIB = 256
"""Inductor's precompiled header takes 150 MiB. With a lower limit, the compiler would be accused."""
WORKER = "fuzz.check.worker"


def list_named(subjects: Sequence[str]) -> tuple[str, ...]:
    """The subjects that a worker loads at its start: functions of the user's, foreign compilers, and attention
    functions if there is nothing else."""
    is_attention = all(is_user_function(name) or get_spec(name).is_attention for name in subjects)
    loaded = (name for name in subjects if is_attention or is_user_function(name) or get_spec(name).is_foreign)
    return tuple(dict.fromkeys(loaded))


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker is started."""

    python: str = sys.executable
    device: str = "cpu"
    named: tuple[str, ...] = ()  # subjects to load at its start, or else it refuses to start
    timeout: float = 60.0  # seconds that a stage of a check may take
    memory_mib: int = 4096  # resident memory of the process and its children
    command: tuple[str, ...] | None = None  # to run instead of the worker of this checkout
    module: str = WORKER
    arguments: tuple[str, ...] = ()  # further arguments of the module or command
    gpu: str = ""  # its CUDA_VISIBLE_DEVICES; "": inherited from this process
    variables: tuple[tuple[str, str], ...] = ()  # further variables of its environment
    cache: Path | None = None  # keeps compiled code over restarts; a first compile costs 10 to 20 s
    log: Path | None = None  # collects its standard error
    patch: str = ""  # the name of a change that its torch has (fuzz/ask/patched_torch.py)
    factory: str = ""  # of a module that it imports: package.module:function
    is_forked: bool = True  # from a process that has imported torch, where that works

    @classmethod
    def from_options(
        cls, python: str | None, device: str, subjects: Iterable[str], timeout: str, memory: int
    ) -> "WorkerConfig":
        """The configuration from options of a command line. Raises `UserError`."""
        if not MIN_MEMORY_MIB <= memory < 1 << 40:
            raise UserError(f"--memory must be at least {MIN_MEMORY_MIB} (importing torch takes 400 MiB), got {memory}")
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if 0 <= limit < MIN_FILE_MIB * 2**20:
            raise UserError(f"files may have {limit / 2**20:.2g} MiB (ulimit -f), and {MIN_FILE_MIB} MiB are needed")
        given = tuple(subjects)
        return cls(
            python=str(Path(python).absolute()) if python and os.sep in python else python or sys.executable,
            device=device,
            named=list_named(given),
            timeout=parse_duration(timeout, "timeout"),
            memory_mib=memory,
        )

    def argv(self) -> list[str]:
        """The command line of a worker."""
        if self.command is not None:
            return [*self.command, *self.arguments]
        return [self.python, "-m", self.module, *self.module_arguments(), "--parent", str(os.getpid())]

    def module_arguments(self) -> list[str]:
        """The arguments of the worker's module."""
        subjects = (word for name in self.named for word in ("--subject", name))
        return ["--device", self.device, "--memory-limit", str(self.memory_mib), *subjects, *self.arguments]

    def environment(self) -> dict[str, str]:
        """The environment of a worker. Compiled code goes to `cache` unless the user's environment names a place."""
        # Subjects that the user names are imported from the working directory.
        paths = [
            str(ROOT),
            *([str(Path.cwd())] if self.named or self.factory else []),
            os.environ.get("PYTHONPATH", ""),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if self.gpu:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        # Workers run in another directory. Inductor calls the C++ compiler without quotes.
        if self.cache is not None and " " not in str(self.cache.absolute()):
            environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self.cache.absolute()))
            # All workers of a campaign share it: Triton puts whole files in their place at once.
            environment.setdefault("TRITON_CACHE_DIR", str(self.cache.absolute().parent / "triton"))
        return environment | dict(self.variables)
