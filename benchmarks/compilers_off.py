"""Every variable that switches a compiler off, tried with every command that judges.

    python -m benchmarks.compilers_off [--python PYTHON] [--only NAME]

Each command must end with exit code 2, and name the variable in its last line. Commands for eager and for attention
functions must work on. A run takes about 10 s; there are some 60. Exits with 1 if a command does otherwise.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLES = {
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DEBUG_FUNCTION": "elsewhere",
    "TORCHDYNAMO_REPRO_AFTER": "dynamo",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:eager",
    "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS": ">=0:fallback_by_default=True",
    "TORCH_BISECT_BACKEND": "eager",
    "TORCH_BISECT_SUBSYSTEM": "lowerings",
    "TORCHINDUCTOR_LITE_MODE": "1",
}
SINCE = {"TORCHINDUCTOR_LITE_MODE": (2, 15)}
"""The first torch version that reads a variable."""
KNOWN = "corpus/known/softmax-over-queries.case.yaml"
RIGHT = "corpus/seeds/bias-for-a-mask-of-a-folded-scale.case.yaml"
JUDGING = {
    "run": "fuzz.run --budget 5x --subject inductor --subject passes --out {out} --python {python}",
    "replay": f"fuzz.replay {KNOWN} --python {{python}}",
    "compare": f"fuzz.compare {KNOWN} --python {{python}} --python {{python}}",
    "shrink": f"fuzz.shrink {KNOWN} --out {{out}} --python {{python}}",
    "report": f"triage.report {KNOWN} --out {{out}} --python {{python}}",
    "pytest": f"pytest -q -p no:cacheprovider {KNOWN} --case-python {{python}}",
}
WORKING_ON = {
    "eager": f"fuzz.replay {RIGHT} --subject eager --python {{python}}",
    "attention": "fuzz.run --budget 3x --subject sdpa_math --out {out} --python {python}",
}


def main() -> int:
    """Print a row for each variable. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter, and so torch version, of the workers")
    parser.add_argument("--only", help="this variable alone")
    options = parser.parse_args()
    asked = [options.python, "-c", "import torch; print(torch.__version__)"]
    torch = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    version = tuple(map(int, torch.split(".")[:2]))
    wrong = 0
    for name in [options.only] if options.only else VARIABLES:
        if version < SINCE.get(name, version):
            print(f"{name}: torch {torch} does not read it", flush=True)
            continue
        results = list(_try(name, VARIABLES[name], options.python))
        wrong += sum(not is_right for _, is_right, _ in results)
        print(
            f"{name}, torch {torch}: {', '.join(command for command, is_right, _ in results if is_right)}", flush=True
        )
        for command, is_right, told in results:
            if not is_right:
                print(f"    {command}: {told}", flush=True)
    print(f"{wrong} commands do otherwise")
    return int(wrong > 0)


def _try(name: str, value: str, python: str) -> Iterator[tuple[str, bool, str]]:
    """For each command: its name, whether it ends as it must, and its exit code and last line."""
    with tempfile.TemporaryDirectory() as directory:
        for command, arguments in (JUDGING | WORKING_ON).items():
            given = arguments.format(out=Path(directory, command), python=python)
            done = subprocess.run(
                [sys.executable, "-m", *given.split()],
                cwd=ROOT,
                env={**os.environ, name: value},
                check=False,
                capture_output=True,
                text=True,
            )
            named = [line for line in (done.stdout + done.stderr).splitlines() if f"{name}={value} " in line]
            is_right = (done.returncode, len(named)) == ((2, 1) if command in JUDGING else (0, 0))
            last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            yield command, is_right, f"exit code {done.returncode}: {last}"


if __name__ == "__main__":
    sys.exit(main())
