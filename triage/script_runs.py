"""Runs of repro.py and of collect_env under the interpreter of a report, and the lines that a report shows."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[WEI]\d{4} |[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)*?(?:(?:site|dist)-packages/|(?=torch/)|(?=[\w.+@~-]+(?![\w./+@~-])))")
"""The directories before a package or a file."""
_PASS = re.compile(r'File ".*(fx_passes|pattern_matcher|_aot_autograd|_dynamo/(variables|symbolic_convert))')
"""Frames in files that make or rewrite graphs."""
TIMEOUT_EXIT = 124
"""The exit code of a run that was stopped, as of timeout(1)."""


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """One run of a script."""

    code: int
    output: str  # on stdout
    log: str  # on stderr


def shorten_log(log: str) -> str:
    """The last lines of the log, and before them its last frame in a graph pass, without chatter and directories."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    lines = [_PATH.sub("", line) for line in lines]
    passes = [number for number, line in enumerate(lines[:-_MOST]) if _PASS.search(line)][-1:]
    before = [line for number in passes for line in (*lines[number : number + 2], "  ...")]
    return "\n".join([*before, *lines[-_MOST:]])


def run(text: str, python: str, *, seconds: float, importable: tuple[str, ...] = ()) -> ScriptRun:
    """Run the text of a script under `python` with a compile cache of its own. `importable`: directories to import
    from."""
    variables = {**os.environ, "TORCH_COMPILE_BACKEND": "inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if importable:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory(prefix="attnfuzz-repro-") as home:
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", home)
        Path(home, "repro.py").write_text(text, encoding="utf-8")
        command = [python, "repro.py"]
        try:
            done = subprocess.run(command, cwd=home, env=variables, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as stopped:
            return ScriptRun(TIMEOUT_EXIT, _decode(stopped.stdout), _decode(stopped.stderr))
    return ScriptRun(done.returncode, _decode(done.stdout), _decode(done.stderr))


def _decode(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def collect(python: str, torch: str) -> str:
    """The output of collect_env. If that fails, a line with the version `torch`."""
    told = _read(python, "-m", "torch.utils.collect_env", seconds=180)
    return told or f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter; "" if it has none."""
    return _read(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _read(*command: str, seconds: float) -> str:
    """The output of a command; "" if it fails."""
    try:
        return _decode(subprocess.run(command, capture_output=True, timeout=seconds, check=True).stdout).strip()
    except (OSError, subprocess.SubprocessError):
        return ""
