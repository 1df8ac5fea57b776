"""The experiments run in float32."""

import pytest
import torch


@pytest.fixture(autouse=True)
def float32(float64):
    torch.set_default_dtype(torch.float32)
