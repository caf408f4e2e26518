"""The output of torch.utils.collect_env under the worker's interpreter, which PyTorch's bug form requires."""

import re
import subprocess

MAX_LINES = 20

_TELLING = re.compile(
    r"PyTorch version|Is debug build|CUDA used|ROCM used|OS:|GCC version|Clang version|Libc|Python (version|platform)"
    r"|Is CUDA available|CUDA runtime|GPU models|GPU \d|Nvidia driver|cuDNN|Architecture|Model name"
    r"|\[(pip3?|conda)\] (torch|triton|numpy|pytorch)"
)


def collect(python: str, torch: str) -> str:
    """What collect_env says, abridged to the lines that tell something when it is long.

    `torch` is the version, all that is said where collect_env fails.
    """
    output = _run(python, "-m", "torch.utils.collect_env", seconds=180)
    if not output:
        return f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and "Could not collect" not in line]
    lines = [line for line in lines if not line.startswith("Collecting environment")]
    if len(lines) > MAX_LINES:
        lines = [line for line in lines if _TELLING.match(line)][:MAX_LINES]
    return "\n".join(lines)


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter, "" where it has none."""
    return _run(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _run(*command: str, seconds: float) -> str:
    """What a command prints, "" where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
