"""Kernels run natively where there is a GPU and through Triton's interpreter elsewhere; it is chosen before the import."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
