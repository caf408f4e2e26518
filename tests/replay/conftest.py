"""A worker that says what a test wants of every case."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.fakes import write_python

FakePython = Callable[..., Path]
SUBJECTS = ("inductor", "passes", "openvino")


@pytest.fixture
def fake_python(tmp_path: Path) -> FakePython:
    """Makes an interpreter, for `--python`, that runs no worker but answers as one."""

    def make(verdict: str, *, openvino: str = "2026.4.1", rejected: str | None = None, **more: Any) -> Path:
        refuses = {"match": "", "subjects": ["eager"], "rejected": rejected}
        says = {"match": "", "subjects": SUBJECTS, "verdict": verdict, "dynamo_same": False}
        says |= {"failure": {"kind": "raised", "error": "as told"}, "numbers": {"ratio": 12.5}}
        says |= {"applied_rewrites": ["_sfdp_pattern_1"]}
        versions = {"openvino": openvino}
        return write_python(
            tmp_path / "fake-python", rules=[refuses, says], subjects=SUBJECTS, versions=versions, **more
        )

    return make
