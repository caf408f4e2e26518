"""PyTorch's CompilerBisector on a repro.py, in a process of its own, and the line it ends with."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SECONDS = 240.0

_PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("repro", sys.argv[1])
repro = importlib.util.module_from_spec(spec)
spec.loader.exec_module(repro)
from torch._inductor.compiler_bisector import CompilerBisector
print("\\nBisection complete:", CompilerBisector.do_bisect(repro.test_fn))
"""
_DONE = re.compile(r"^Bisection complete: (.*)$", re.MULTILINE)
_FIELD = re.compile(r"(backend|subsystem|debug_info)='([^']*)'")


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


def bisect(repro: Path, python: str, seconds: float = SECONDS) -> Bisection:
    """Run the bisector on `test_fn` of a repro.py under that interpreter."""
    ours = ("TORCH_BISECT", "TORCH_COMPILE_BACKEND")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with tempfile.TemporaryDirectory(prefix="attnfuzz-bisect-") as scratch:
        try:
            done = subprocess.run(
                [python, "-c", _PROGRAM, str(repro.resolve())],
                cwd=repro.resolve().parent,
                env={"TORCHINDUCTOR_CACHE_DIR": scratch, **environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Bisection(error=f"it did not end within {seconds:g} s")
    if "No module named 'torch._inductor.compiler_bisector'" in done.stderr:
        return Bisection(error="this torch has none")
    return parse_output(done.stdout)


def parse_output(output: str) -> Bisection:
    """What the bisector's output says."""
    found = _DONE.search(output)
    if found is None:
        return Bisection(error="it did not end as it should")
    values = dict(_FIELD.findall(found[1]))
    return Bisection(
        values.get("backend", ""),
        values.get("subsystem", ""),
        _detail(values.get("debug_info", ""), values.get("subsystem", "")),
    )


def _detail(text: str, subsystem: str) -> str:
    """What the guilty application was of: of a lowering the operation's name alone."""
    operation = re.search(r"\baten[.:]+(\w+)|\bprims[.:]+(\w+)", text)
    if operation:
        return operation[1] or operation[2]
    # A lowering is error by its node, "relu_1".
    first = text.strip().splitlines()[0][:60] if text.strip() else ""
    return re.sub(r"_\d+$", "", first) if subsystem == "lowerings" else first
