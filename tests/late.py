"""`pytest -p tests.late`: on the CPU, too, numbers are read one step late, as where the host runs ahead.

Commands in processes of their own compute at once, as ever. A test of what only a device that computes at
once does, such as to stop after the step in which a signal arrives, is marked `at_once` and left out.
"""

import pytest

MODULES = ("training.loop", "training.optim", "evaluation.inference")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("at_once"):
            item.add_marker(pytest.mark.skip(reason="of a device that computes at once"))


@pytest.fixture(scope="session", autouse=True)
def _late():
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:
            patch.setattr(f"vitcli.{name}.runs_ahead", lambda device: True)
        yield
