"""Runs of repro.py and of collect_env under the interpreter of a report, and the lines that a report shows."""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

from corpus.value_files import link_files

_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[WEI]\d{4} |[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)*?(?:(?:site|dist)-packages/|(?=torch/)|(?=[\w.+@~-]+(?![\w./+@~-])))")
"""The directories before a package or a file."""
_PASS = re.compile(r'File ".*(fx_passes|pattern_matcher|_aot_autograd|_dynamo/(variables|symbolic_convert))')
"""Frames in files that make or rewrite graphs."""
_FACTS = re.compile(
    r"PyTorch version|Is debug build|(?:CUDA|ROCM|HIP) used|OS:|GCC|Clang|Libc|Python|Is CUDA|CUDA runtime|GPU models"
    r"|Nvidia|cuDNN|.*libcudnn\.so|\s*Architecture|\s*Model name|GPU \d"
    r"|\[(?:pip3|conda)\] (?:numpy|torch|triton|nvidia-cudnn\S*)[= ]"
)
"""The lines of collect_env that a reader needs; not the processor's flags, caches and vulnerabilities."""
SETTINGS = {"TORCH_COMPILE_BACKEND": "inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1", "CI": ""}
"""Environment variables of a run. Where CI is set, PyTorch's test runner needs a package that its wheel does not
bring (torch/testing/_internal/common_utils.py, IS_CI)."""
TIMEOUT_EXIT = 124
"""The exit code of a run that was stopped: timeout(1)'s."""


def shorten_log(log: str) -> str:
    """The last lines of the log, and before them its last frame in a graph pass, without chatter and directories."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    lines = [_PATH.sub("", line) for line in lines]
    passes = [number for number, line in enumerate(lines[:-_MOST]) if _PASS.search(line)][-1:]
    before = [line for number in passes for line in (*lines[number : number + 2], "  ...")]
    return "\n".join([*before, *lines[-_MOST:]])


def run(text: str, python: str, *, seconds: float, importable: tuple[str, ...] = ()) -> CompletedProcess[str]:
    """Run the text of a script under `python` with a compile cache of its own. `importable`: directories to import
    from."""
    variables = os.environ | SETTINGS
    if importable:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory(prefix="attnfuzz-repro-") as home:
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", home)
        Path(home, "repro.py").write_text(text, encoding="utf-8")
        link_files(text, Path(home))
        command = ["timeout", "--foreground", "--kill-after=5", str(seconds), python, "repro.py"]
        return subprocess.run(
            command, cwd=home, env=variables, capture_output=True, encoding="utf-8", errors="replace", check=False
        )


def collect(python: str, torch: str) -> str:
    """The output of collect_env without empty entries; if it fails, a line with the version `torch`."""
    lines = _read(python, "-m", "torch.utils.collect_env", seconds=180).splitlines()
    told = [line for line in lines if _FACTS.match(line) and not line.endswith(("N/A", "Could not collect"))]
    return "\n".join(told) or f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter; "" if it has none."""
    return _read(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _read(*command: str, seconds: float) -> str:
    """The output of a command; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=seconds, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
