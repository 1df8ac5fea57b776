"""What the tests of trainers share."""

import importlib

import pytest


@pytest.fixture
def accelerate():
    """Accelerate's state is global: each test begins and ends without one."""
    state = pytest.importorskip("accelerate.state", reason="pip install '.[trainers]'").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)


@pytest.fixture
def with_lightning():
    """The example, where Lightning is installed."""
    pytest.importorskip("lightning", reason="pip install '.[trainers]'")
    return importlib.import_module("examples.with_lightning")


@pytest.fixture
def with_huggingface(accelerate):
    """The example, where transformers is installed."""
    pytest.importorskip("transformers", reason="pip install '.[trainers]'")
    return importlib.import_module("examples.with_huggingface")
