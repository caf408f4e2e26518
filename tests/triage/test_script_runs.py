"""A traceback in a report: frames of a graph pass are there, this machine's directories are not."""

from triage.script_runs import shorten_log

HOME = "/home/somebody/venv/lib/python3.11/site-packages"


def frame(path: str, number: int) -> str:
    return f'  File "{path}", line {number}, in step\n    step({number})\n    ^^^^\n'


LOG = (
    "Traceback (most recent call last):\n"
    + frame("/tmp/x1y2/out/repro.py", 61)
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
        frame("/tmp/x1y2/out/repro.py", 1) + frame(f"{HOME}/triton/jit.py", 2) + "OSError: /opt/a/torch/lib/x.so"
    )
    assert short == (
        '  File "repro.py", line 1, in step\n    step(1)\n  File "triton/jit.py", line 2, in step\n    step(2)\n'
        "OSError: torch/lib/x.so"
    )
    assert "/home" not in shorten_log(LOG) and "/tmp" not in shorten_log(LOG)
