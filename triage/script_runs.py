"""Runs of repro.py and of collect_env under the interpreter of a report, and the lines that a report shows."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[WEI]\d{4} |[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)+[\w.+@~-]+")
_FRAME = '  File "'
_PASS = re.compile(r"fx_passes|pattern_matcher|_aot_autograd|_dynamo/(variables|symbolic_convert)")
"""Files that make or rewrite graphs."""

_LAST_FRAMES, _PASS_FRAMES, _ERROR_LINES, _MOST_OF_FRAME = 4, 2, 4, 8
TIMEOUT_EXIT = 124
"""The exit code of a run that was stopped, as of timeout(1)."""

_TELLING = re.compile(
    r"PyTorch version|Is debug build|CUDA used|ROCM used|OS:|GCC version|Clang version|Libc|Python (version|platform)"
    r"|Is CUDA available|CUDA runtime|GPU models|GPU \d|Nvidia driver|cuDNN version: \d|Architecture|Model name"
    r"|\[(pip3?|conda)\] (torch|triton|numpy|pytorch)"
)


def shorten_log(log: str) -> str:
    """The log without chatter and this machine's directories.

    Of a long traceback it keeps the deepest frames in graph passes, the deepest of all, and both ends of the error.
    """
    lines = [
        _PATH.sub(_path_from_package, line.rstrip())
        for line in log.splitlines()
        if line.strip() and not _CHATTER.match(line)
    ]
    starts = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    if len(lines) <= _MOST or not starts:
        return "\n".join(lines[-_MOST:])
    end = next((n for n in range(starts[-1] + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    frames = [lines[start:stop][:_MOST_OF_FRAME] for start, stop in pairwise((*starts, end))]
    passes = [number for number, frame in enumerate(frames) if _PASS.search(frame[0])]
    kept = sorted({*passes[-_PASS_FRAMES:], *range(max(0, len(frames) - _LAST_FRAMES), len(frames))})
    told = [line for before, n in pairwise((-1, *kept)) for line in ("  ...",) * (n > before + 1) + (*frames[n],)]
    error = lines[end:]
    error = [*error[:_ERROR_LINES], "  ...", *error[-_ERROR_LINES:]] if len(error) > 2 * _ERROR_LINES else error
    return "\n".join(["Traceback (most recent call last):", *told, *error])


def _path_from_package(found: re.Match[str]) -> str:
    path = found[0]
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    before, mark, after = path.rpartition("/torch/")
    return f"torch/{after}" if mark and before else path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a script."""

    code: int
    output: str  # on stdout
    log: str  # on stderr


def run(path: Path, python: str, *, seconds: float, importable: tuple[str, ...] = ()) -> Run:
    """Run a script under `python` with a compile cache of its own. `importable`: directories to import from."""
    variables = {**os.environ, "TORCH_COMPILE_BACKEND": "inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if importable:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory(prefix="attnfuzz-repro-") as scratch:
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", scratch)
        command, home = [python, path.name], path.parent
        try:
            done = subprocess.run(command, cwd=home, env=variables, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as stopped:
            return Run(TIMEOUT_EXIT, _decode(stopped.stdout), _decode(stopped.stderr))
    return Run(done.returncode, _decode(done.stdout), _decode(done.stderr))


def run_text(text: str, python: str, *, seconds: float) -> Run:
    """As `run`, of the text of a script."""
    with tempfile.TemporaryDirectory(prefix="attnfuzz-block-") as home:
        file = Path(home, "block.py")
        file.write_text(text, encoding="utf-8")
        return run(file, python, seconds=seconds)


def _decode(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def collect(python: str, torch: str) -> str:
    """The telling lines of collect_env; `torch`, the version, where it fails."""
    output = _read(python, "-m", "torch.utils.collect_env", seconds=180)
    if not output:
        return f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"
    lines = (line.rstrip() for line in output.splitlines() if _TELLING.match(line))
    return "\n".join(line for line in lines if "Could not collect" not in line)


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter, "" where it has none."""
    return _read(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _read(*command: str, seconds: float) -> str:
    """The output of a command, "" where it fails."""
    try:
        return _decode(subprocess.run(command, capture_output=True, timeout=seconds, check=True).stdout).strip()
    except (OSError, subprocess.SubprocessError):
        return ""
