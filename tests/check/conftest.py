from collections.abc import Sequence

import pytest

from fuzz.evaluator import Evaluator
from tests.check.client import Asker, Borrower


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Who takes the fixture `worker` starts a process."""
    for item in items:
        if "worker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.worker)


@pytest.fixture
def worker(shared: Evaluator) -> Asker:
    return Borrower(shared.process)
