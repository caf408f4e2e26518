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
    command = [python, "-m", "torch.utils.collect_env"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=180, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    lines = [
        line for line in lines if not line.startswith("Collecting environment") and "Could not collect" not in line
    ]
    if len(lines) <= MAX_LINES:
        return "\n".join(lines)
    return "\n".join([line for line in lines if _TELLING.match(line)][:MAX_LINES])


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter, "" where it has none."""
    program = f"from importlib.metadata import version; print(version({distribution!r}))"
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
