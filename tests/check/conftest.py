from collections.abc import Iterator, Sequence

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


@pytest.fixture
def worker(shared: Evaluator) -> Asker:
    return Borrower(shared.process)


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    """A case that is judged in this process leaves gradients off, for whichever test is next."""
    with torch.enable_grad():
        yield
