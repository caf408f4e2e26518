"""`kernels` is also the import name of another distribution: a worker in an environment that has it uses ours."""

from pathlib import Path

import pytest

from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol import Verdict
from generators.sampling.sample import sample

pytestmark = pytest.mark.worker


def test_an_environment_with_the_other_package_keeps_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "site" / "kernels"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.setenv("PYTHONPATH", str(theirs.parent))
    with open_evaluator(WorkerConfig()) as evaluator:
        cases = (sample(3, index, attention_only=True) for index in range(20))
        plain = next(case for case in cases if case.contracts[0].dropout == 0)
        result = evaluator.judge(plain, "triton")
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING)
