"""What tests of joined processes share."""

import pytest


@pytest.fixture
def fresh_accelerate():
    """Accelerate keeps its state for all Accelerators of a process."""
    from accelerate.state import AcceleratorState, GradientState

    def reset() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    reset()
    yield
    reset()
