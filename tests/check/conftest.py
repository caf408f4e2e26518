from collections.abc import Iterator

import pytest
import torch

from tests.check.client import Client


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As workers have it: what a check takes of the processor decides how many dropout seeds it tries."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def worker() -> Iterator[Client]:
    with Client() as client:
        yield client
