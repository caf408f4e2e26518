"""Cases to report: a real bug of torch 2.13.0, and ladders as a worker would give them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from corpus import casefile
from corpus.entry import Entry, Expectation
from fuzz.attribution.ablation import AOT_EAGER, DYNAMIC, DYNAMO, EAGER, INDUCTOR, PASSES, Ablation
from fuzz.experiments import NO_PATTERNS
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import Value, WrongValue
from generators.program.case import Case
from tests.command import ROOT
from tests.programs import program
from tests.replay.conftest import FakePython, fake_python
from triage import script_runs
from triage.report.build import Evidence

__all__ = ["FakePython", "fake_python"]

SOFTMAX_OVER_QUERIES = program(
    "B: 2, H: 4, S: 8, D: 16",
    dict.fromkeys("qkv", "B, H, S, D"),
    "kt = transpose k, dim0: -2, dim1: -1",
    "products = matmul q kt",
    "scores = div products, other: 4.0",
    "weights = softmax scores, dim: -2",
    "out = matmul weights v",
)
NUMBERS = {"compiled_error": 0.97, "eager_error": 2.2e-07, "scale": 2.3, "rows_wrong": 64.0, "rows_total": 64.0}
OFF = WrongValue(Value("output", 0), (1, 0), error=0.9, ratio=9e4, limit=32.0, eager_error=2e-7)


RUN_EACH = """
import os, runpy, signal, sys, traceback
import torch._dynamo.backends.inductor, torch._inductor.compile_fx
torch._inductor.codecache.torch_key()  # reads all of torch
torch._inductor.cpu_vec_isa.pick_vec_isa()  # starts Python for each kind
for line in sys.stdin:
    path, *arguments = line.split()
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(300)
    code, out = 0, os.open(path + ".out", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)
"""
RunAll = Callable[..., list[CompletedProcess[str]]]


@pytest.fixture(scope="session")
def run_all() -> Iterator[RunAll]:
    """Runs scripts, each in a fork of one process that has torch; gives exit codes and all output."""
    environment = {**os.environ, **script_runs.SCRIPT_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-c", RUN_EACH], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:

        def run(texts: list[str], directory: Path, *arguments: str) -> list[CompletedProcess[str]]:
            assert process.stdin and process.stdout
            paths = [directory / f"{number}.py" for number in range(len(texts))]
            for path, text in zip(paths, texts, strict=True):
                path.write_text(text)
                process.stdin.write(f"{' '.join([str(path), *arguments])}\n")
            process.stdin.flush()
            codes = [int(process.stdout.readline()) for _ in paths]
            outs = [Path(f"{path}.out").read_text() for path in paths]
            return [CompletedProcess([], code, out, "") for code, out in zip(codes, outs, strict=True)]

        yield run


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say of the environment nothing but torch's version: asking torch takes seconds."""
    monkeypatch.setattr(script_runs, "collect", lambda _python, torch: f"PyTorch version: {torch}")


@pytest.fixture
def case() -> Case:
    return casefile.loads(SOFTMAX_OVER_QUERIES)


@pytest.fixture
def entry(case: Case) -> Entry:
    return Entry(case)


def known(given: Case | str, subject: str = "inductor", **more: Any) -> Entry:
    """A case, or the text of one, that is known to fail under a subject."""
    case = casefile.loads(given) if isinstance(given, str) else given
    return Entry(case, expect=Expectation("known", subject=subject, **more))


def ablation(**verdicts: Verdict) -> Ablation:
    """The bug above, with other verdicts for the stages named."""
    found = dict.fromkeys((EAGER, DYNAMO, AOT_EAGER, "no_patterns"), Verdict.OK)
    found |= dict.fromkeys((PASSES, INDUCTOR, DYNAMIC), Verdict.WRONG_RESULT) | verdicts
    found[NO_PATTERNS] = found.pop("no_patterns")
    result = SubjectResult(
        "", Verdict.OK, numbers=NUMBERS, applied_rewrites=("_sfdp_pattern_1_inference", "pointless_view")
    )
    stages = {name: replace(result, subject=name, verdict=v, failure=OFF) for name, v in found.items()}
    return Ablation(Hello("2.13.0", "3.11", "cpu", "g++", 1), stages, INDUCTOR)


def ran(log: str = "") -> Evidence:
    """A script that showed the bug."""
    return Evidence(CompletedProcess((), 1, "float64 up to 2.3\n", log))
