"""A worker of the standard library alone that says what a test wants of every case."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

FakePython = Callable[..., Path]


@pytest.fixture
def fake_python(tmp_path: Path) -> FakePython:
    """Makes an interpreter, for `--python`, that runs no worker but answers as one."""

    def make(
        verdict: str,
        *,
        torch: str = "2.13.0",
        openvino: str = "2026.4.1",
        unusable: str = "",
        rejected: str | None = None,
    ) -> Path:
        script = tmp_path / "fake-python"
        script.write_text(
            textwrap.dedent(f"""\
            #!{sys.executable}
            import json, sys

            def say(**message):
                print(json.dumps(message), flush=True)

            if {unusable!r} and "--device cuda" in " ".join(sys.argv):
                say(kind="unusable", reason={unusable!r})
                sys.exit(2)
            say(kind="hello", torch={torch!r}, python="3.11", device="cpu", cxx="g++", pid=1, seconds=0.1,
                subjects=["inductor", "passes", "openvino"], versions=dict(openvino={openvino!r}))
            for line in sys.stdin:
                check = json.loads(line)
                if check["kind"] == "exit":
                    break
                failure, numbers, names = dict(kind="raised", error="as told"), dict(ratio=12.5), ["_sfdp_pattern_1"]
                results = [dict(subject=s, verdict={verdict!r}, failure=failure, numbers=numbers,
                                applied_rewrites=names, dynamo_same=False) for s in check["subjects"]]
                rejected = {rejected!r}
                say(kind="result", id=check["id"], rejected=rejected, results=[] if rejected else results)
            """)
        )
        script.chmod(0o755)
        return script

    return make
