from collections.abc import Iterator

import pytest

from tests.check.client import Client


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(scope="module")
def worker(cache: str) -> Iterator[Client]:
    with Client(cache=cache) as client:
        yield client
