import math
from collections.abc import Iterator

import pytest
import torch

from fuzz.ask.evaluator import Evaluator
from fuzz.check import call_changes
from fuzz.check.judge import constants
from tests.check.client import Asker


@pytest.fixture
def worker(shared: Evaluator) -> Asker:
    return Asker(shared.process)


@pytest.fixture(autouse=True)
def _checks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time on a busy machine ends no check. A case that is judged here leaves gradients off, for whichever is next."""
    monkeypatch.setattr(constants, "DROPOUT_SECONDS", math.inf)
    monkeypatch.setattr(call_changes, "SECONDS", math.inf)
    with torch.enable_grad():
        yield
