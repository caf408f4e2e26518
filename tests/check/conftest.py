from collections.abc import Iterator

import pytest
import torch

from fuzz.ask.evaluator import Evaluator
from tests.check.client import Asker, Borrower


@pytest.fixture
def worker(shared: Evaluator) -> Asker:
    return Borrower(shared.process)


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    """A case that is judged in this process leaves gradients off, for whichever test is next."""
    with torch.enable_grad():
        yield
