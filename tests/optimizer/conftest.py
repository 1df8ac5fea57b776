"""What the tests of trainers share."""

import pytest


@pytest.fixture
def accelerate():
    """Accelerate's state is global: each test begins and ends without one."""
    state = pytest.importorskip("accelerate.state", reason="pip install '.[trainers]'").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)
