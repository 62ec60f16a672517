"""Every operation on the disk struck in turn: killed at it, failed once, failed from it on, failed late.

Whatever it was, the command ends with exit code 5 in three lines, no acknowledged step is gone, and the same
command afterwards ends as if nothing had happened, to the last bit.
"""

import json

import pytest

from tests.faulty_disk import FAULTS, faulty_disk, script  # noqa: F401, a fixture


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("what", ["saves", "run"])
def test_no_operation_that_fails_loses_a_step_or_a_bit(faulty_disk, photos, tmp_path, what, fault):  # noqa: F811
    swept = json.loads(script(faulty_disk, "tests.disk_sweeps", what, fault, tmp_path, photos))

    print({key: value for key, value in swept.items() if key != "problems"})
    assert swept["problems"] == []
    assert swept["struck"] >= min(40, swept["operations"]) > 30
