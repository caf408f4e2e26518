"""Where the workers of a campaign spend their time.

    python -m benchmarks.profile [--rate 10] [--python PYTHON] -- --budget 2m --workers 2 [OPTIONS OF fuzz.run...]

Runs a campaign under py-spy and prints the share of the workers' wall-clock time for each part of a check. Needs
py-spy, of the development dependencies. Sampling slows the campaign, so shares count here and checks per second do not.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PARTS = {
    "waiting for the next case": ("read_check (fuzz/check/worker",),
    "starting and importing": ("_start (fuzz/check/worker", "_hello (fuzz/check/worker"),
    "probing vector instructions": ("torch/_inductor/cpu_vec_isa",),
    "compiling C++": ("torch/_inductor/cpp_builder", "_worker_compile_cpp", "torch/utils/_filelock", "(subprocess.py"),
    "compiling Triton": ("triton/compiler", "torch/_inductor/runtime/triton_heuristics"),
    "interpreting Triton": ("triton/runtime/interpreter",),
    "lowering, scheduling, generating code": (
        "torch/_inductor/graph.py",
        "torch/_inductor/lowering",
        "torch/_inductor/scheduler",
        "torch/_inductor/codegen",
    ),
    "graph passes": ("torch/_inductor/pattern_matcher", "torch/_inductor/fx_passes"),
    "AOTAutograd": ("torch/_functorch",),
    "Dynamo": ("torch/_dynamo",),
    "dropout": ("fuzz/check/judge/dropout",),
    "proofs of rewrites": ("fuzz/check/prove",),
    "eager, float64 and rounding": ("fuzz/check/judge/case_run", "fuzz/check/run/program"),
    "verdicts": ("fuzz/check/judge", "fuzz/check/run/attention"),
}
"""Parts, and text in the stack of a sample that tells each. The first part that fits counts."""
_IN_WORKER = "main (fuzz/check/worker"


def main() -> int:
    """Run and print. Returns the exit code of the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=10, help="samples a second")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the campaign")
    parser.add_argument("arguments", nargs="+", metavar="OPTION", help="options of fuzz.run, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnfuzz-profile-") as scratch:
        stacks = Path(scratch, "stacks")
        spy = [
            "py-spy",
            "record",
            "--idle",
            "--nonblocking",
            "--subprocesses",
            "--format=raw",
            f"--rate={options.rate}",
        ]
        campaign = [options.python, "-m", "fuzz.run", f"--out={scratch}/run", f"--corpus={scratch}/found"]
        path = str(Path(sys.executable).with_name(spy[0]))
        done = subprocess.run([path, *spy[1:], f"--output={stacks}", "--", *campaign, *options.arguments], check=False)
        for line in format_shares(stacks.read_text(encoding="utf-8").splitlines()):
            print(line)
    return done.returncode


def format_shares(stacks: Iterable[str]) -> list[str]:
    """A line for each part, largest first. `stacks`: lines of a stack and its number of samples."""
    samples = Counter[str]()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if _IN_WORKER in stack and count.isdecimal():
            found = (part for part, texts in PARTS.items() if any(text in stack for text in texts))
            samples[next(found, "other")] += int(count)
    return [f"{count / samples.total():6.1%}  {part}" for part, count in samples.most_common()]


if __name__ == "__main__":
    sys.exit(main())
