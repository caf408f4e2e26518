"""Runs under the interpreter that a report is about, of repro.py, of PyTorch's bisector on it, and of collect_env; and
what of their output a report shows.
"""

import json
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)+[\w.+@~-]+")
_FRAME = '  File "'
_PASS = re.compile(r"fx_passes|pattern_matcher")
"""Where Inductor rewrites graphs."""

_LAST_FRAMES, _PASS_FRAMES, _OTHER_LINES = 3, 2, 6
TIMEOUT_EXIT = 124
"""The exit code recorded for a run that was stopped, as timeout(1) gives."""

MAX_LINES = 20
"""Of what collect_env says."""

_TELLING = re.compile(
    r"PyTorch version|Is debug build|CUDA used|ROCM used|OS:|GCC version|Clang version|Libc|Python (version|platform)"
    r"|Is CUDA available|CUDA runtime|GPU models|GPU \d|Nvidia driver|cuDNN|Architecture|Model name"
    r"|\[(pip3?|conda)\] (torch|triton|numpy|pytorch)"
)
BISECT_SECONDS = 240.0

_PROGRAM = """
import dataclasses, importlib.util, json, sys
spec = importlib.util.spec_from_file_location("repro", sys.argv[1])
repro = importlib.util.module_from_spec(spec)
spec.loader.exec_module(repro)
from torch._inductor.compiler_bisector import CompilerBisector
found = CompilerBisector.do_bisect(repro.test_fn)
print(json.dumps(dataclasses.asdict(found) if found else {}, default=str))
"""


def shorten_log(log: str) -> str:
    """The log without chatter and this machine's directories. Of a long one: the deepest frames of a graph
    pass, the last frames of each traceback, and its end."""
    lines = [
        _PATH.sub(_path_from_package, line.rstrip())
        for line in log.splitlines()
        if line.strip() and not _CHATTER.match(line)
    ]
    if len(lines) <= _MOST:
        return "\n".join(lines)
    # A frame with its text is one block, every other line another.
    blocks = re.findall(r"  File \".*\n(?:    .*\n)*|.*\n", "".join(f"{line}\n" for line in lines))
    kept = _choose_blocks(blocks)
    told: list[str] = []
    for number, block in enumerate(blocks):
        if number in kept:
            told.append(block)
        elif not told or told[-1] != "  ...\n":
            told.append("  ...\n")
    return "".join(told).removesuffix("\n")


def _path_from_package(found: re.Match[str]) -> str:
    path = found[0]
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    before, mark, after = path.rpartition("/torch/")
    return f"torch/{after}" if mark and before else path.rpartition("/")[2]


def _choose_blocks(blocks: list[str]) -> set[int]:
    frames = [number for number, block in enumerate(blocks) if block.startswith(_FRAME)]
    others = [number for number in range(len(blocks)) if number not in frames]
    # The last ones of a traceback are followed by what was raised.
    last = [number for number in frames if any(number < end <= number + _LAST_FRAMES for end in others)]
    deepest = [number for number in frames if _PASS.search(blocks[number].partition("\n")[0])][-_PASS_FRAMES:]
    heads = [number for number in others if blocks[number].startswith("Traceback")]
    return {*last[-2 * _LAST_FRAMES :], *deepest, *heads[:1], *others[-_OTHER_LINES:]}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a script: its exit code, and what it wrote on stdout and on stderr."""

    code: int
    output: str
    log: str


def run(
    path: Path,
    python: str,
    *,
    seconds: float = 300.0,
    importable: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Run a repro.py under `python` with its own compile cache, `environment` in addition to ours, and the directories
    `importable` to import from."""
    variables = {**os.environ, **(environment or {}), "TORCH_COMPILE_BACKEND": "inductor"}
    if importable:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
    return _execute([python, path.name, *arguments], path.parent, variables, seconds)


def _execute(command: list[str], directory: Path, environment: Mapping[str, str], seconds: float) -> Run:
    with tempfile.TemporaryDirectory(prefix="attnfuzz-repro-") as scratch:
        variables = {"TORCHINDUCTOR_CACHE_DIR": scratch, **environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=directory, env=variables, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as stopped:
            return Run(TIMEOUT_EXIT, _decode(stopped.stdout), _decode(stopped.stderr))
    return Run(done.returncode, _decode(done.stdout), _decode(done.stderr))


def _decode(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def trace(path: Path, python: str, seconds: float = 300.0) -> Path:
    """Run a repro.py once more with TORCH_TRACE; gives trace.zip beside it, with what torch wrote."""
    archive = path.with_name("trace.zip")
    with tempfile.TemporaryDirectory(prefix="attnfuzz-trace-") as directory:
        run(path, python, seconds=seconds, environment={"TORCH_TRACE": directory})
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for written in sorted(Path(directory).rglob("*")):
                if written.is_file():
                    file.write(written, written.relative_to(directory))
    return archive


def collect(python: str, torch: str) -> str:
    """What collect_env says, abridged to the lines that tell something when it is long.

    `torch` is the version, all that is said where collect_env fails.
    """
    output = _read(python, "-m", "torch.utils.collect_env", seconds=180)
    if not output:
        return f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and "Could not collect" not in line]
    lines = [line for line in lines if not line.startswith("Collecting environment")]
    if len(lines) > MAX_LINES:
        lines = [line for line in lines if _TELLING.match(line)][:MAX_LINES]
    return "\n".join(lines)


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter, "" where it has none."""
    return _read(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _read(*command: str, seconds: float) -> str:
    """What a command prints, "" where it fails."""
    try:
        done = _execute([*command], Path.cwd(), os.environ, seconds)
    except OSError:
        return ""
    return "" if done.code else done.output.strip()


@dataclass(frozen=True, slots=True)
class Bisection:
    """What the bisector says. `backend` is "" where it found nothing; `error`: why it could not be asked, else ""."""

    backend: str = ""
    subsystem: str = ""
    detail: str = ""
    error: str = ""

    @property
    def line(self) -> str:
        """In one line: "inductor, joint_graph_passes: pass_pattern_0"."""
        if self.error:
            return self.error
        if not self.backend:
            return "it found nothing"
        place = f", {self.subsystem}" if self.subsystem else ""
        return f"{self.backend}{place}{f': {self.detail}' if self.detail and self.detail != self.subsystem else ''}"


def bisect(repro: Path, python: str, seconds: float = BISECT_SECONDS) -> Bisection:
    """Run the bisector on `test_fn` of a repro.py under that interpreter."""
    ours = ("TORCH_BISECT", "TORCH_COMPILE_BACKEND")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    file = repro.resolve()
    done = _execute([python, "-c", _PROGRAM, str(file)], file.parent, environment, seconds)
    if done.code == TIMEOUT_EXIT:
        return Bisection(error=f"it did not end within {seconds:g} s")
    if "No module named 'torch._inductor.compiler_bisector'" in done.log:
        return Bisection(error="this torch has none")
    return parse_output(done.output)


def parse_output(output: str) -> Bisection:
    """What the bisector's last line says; the detail is what the guilty application was of, of a lowering its name."""
    try:
        found = json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        return Bisection(error="it did not end as it should")
    subsystem, text = found.get("subsystem") or "", (found.get("debug_info") or "").strip()
    detail = text.splitlines()[0][:60] if text else ""
    if operation := re.search(r"\b(?:aten|prims)[.:]+(\w+)", text):
        detail = operation[1]
    elif subsystem == "lowerings":
        detail = re.sub(r"_\d+$", "", detail)  # it is named by its node, "relu_1"
    return Bisection(found.get("backend") or "", subsystem, detail)
