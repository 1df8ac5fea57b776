"""Every test runs in float64, seeded, on one thread."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch; for the processes that tests start, too

import pytest
import torch
from hypothesis import settings

settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("suite")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """float64 is the default dtype, and the seed is fixed."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
