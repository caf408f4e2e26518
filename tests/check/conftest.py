from collections.abc import Iterator, Sequence

import pytest
import torch

from tests.check.client import Client


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Who takes one of these fixtures starts a worker process."""
    for item in items:
        if {"worker", "attending"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.worker)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As workers have it: what a check takes of the processor decides how many dropout seeds it tries."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def worker() -> Iterator[Client]:
    with Client() as client:
        yield client
