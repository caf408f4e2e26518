"""Scripts of a report, and a traceback in it: frames of a graph pass are there, this machine's directories are not."""

import sys
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import cast

import pytest

from fuzz.ask.evaluator import Evaluator
from triage.report.progress import describe_progress
from triage.script_runs import ScriptRuns, shorten_log

HOME = "/home/somebody/venv/lib/python3.11/site-packages"


def frame(path: str, number: int) -> str:
    return f'  File "{path}", line {number}, in step\n    step({number})\n    ^^^^\n'


LOG = (
    "Traceback (most recent call last):\n"
    + frame("/tmp/x1y2/out/bug.py", 61)
    + "".join(frame(f"{HOME}/torch/_dynamo/eval_frame.py", n) for n in range(20))
    + frame(f"{HOME}/torch/_inductor/fx_passes/joint_graph.py", 100)
    + frame(f"{HOME}/torch/_inductor/pattern_matcher.py", 101)
    + frame(f"{HOME}/torch/_inductor/fx_passes/fuse_attention.py", 102)
    + "".join(frame("/home/somebody/pytorch/torch/fx/proxy.py", n) for n in range(200, 210))
    + "torch._inductor.exc.InductorError: IndexError: list index out of range\n\n"
    + "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n"
)


def test_the_deepest_frame_of_a_pass_is_shown_and_the_end() -> None:
    text = shorten_log(LOG)
    lines = text.splitlines()
    assert '  File "torch/_inductor/fx_passes/fuse_attention.py", line 102, in step\n    step(102)\n' in text
    assert '  File "torch/fx/proxy.py", line 209, in step\n' in text
    assert lines[-1] == "torch._inductor.exc.InductorError: IndexError: list index out of range"
    assert len(lines) <= 23


def test_paths_begin_at_their_package() -> None:
    short = shorten_log(
        frame("/tmp/x1y2/out/bug.py", 1) + frame(f"{HOME}/triton/jit.py", 2) + "OSError: /opt/a/torch/lib/x.so"
    )
    assert short == (
        '  File "bug.py", line 1, in step\n    step(1)\n  File "triton/jit.py", line 2, in step\n    step(2)\n'
        "OSError: torch/lib/x.so"
    )
    assert "/home" not in shorten_log(LOG) and "/tmp" not in shorten_log(LOG)


def test_scripts_share_binaries_but_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    text = (
        "import os, pathlib\n"
        "home = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
        "print(sorted(path.name for path in home.glob('*')))\n"
        "for name in ('fxgraph', 'ab'): (home / name).mkdir(parents=True, exist_ok=True)\n"
    )
    with ScriptRuns(sys.executable, 30.0) as scripts:
        done = [scripts.run(text).stdout.strip() for _ in range(2)]
        task = scripts.submit("a name", lambda: scripts.task).result()
    assert done == ["[]", "['ab']"]
    assert task == "a name"


def test_who_leaves_early_waits_for_no_script() -> None:
    with ScriptRuns(sys.executable, 600.0) as scripts:
        endless = scripts.submit("endless", scripts.run, "import time\nprint(1, flush=True)\ntime.sleep(600)")
        never = scripts.submit("never", scripts.run, "print(2)")
        while not scripts.task:
            pass
    assert never.cancelled()
    assert endless.cancelled() or isinstance(endless.exception(), CancelledError) or endless.result().returncode != 0


def test_progress_names_the_stage_of_the_worker_and_the_script() -> None:
    process = SimpleNamespace(stage="inductor", stage_began=time.monotonic() - 12, checks=3)
    line = describe_progress(
        cast("Evaluator", SimpleNamespace(process=process)), cast("ScriptRuns", SimpleNamespace(task="bug.py")), 40.0
    )
    assert line == "  after 40 s: inductor for 12 s, running bug.py, 3 checks by this worker"
