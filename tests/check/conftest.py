from collections.abc import Sequence

import pytest
import torch

from fuzz.evaluator import Evaluator
from tests.check.client import Asker, Borrower


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Who takes the fixture `worker` starts a process."""
    for item in items:
        if "worker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.worker)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As workers have it: what a check takes of the processor decides how many dropout seeds it tries."""
    torch.set_num_threads(1)


@pytest.fixture
def worker(shared: Evaluator) -> Asker:
    return Borrower(shared.process)
