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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "EIO", "full", "late"])
@pytest.mark.parametrize(
    "what",
    ["evaluate", "fewshot", "fewshot-cache", "embed", "predict", "export", "export-npz"],
)  # fmt: skip
def test_no_result_is_half_written(faulty_disk, photos, tmp_path, what, fault):  # noqa: F811
    swept = json.loads(script(faulty_disk, "tests.disk_sweeps", what, fault, tmp_path, photos))

    print({key: value for key, value in swept.items() if key != "problems"})
    assert swept["problems"] == [] and swept["struck"] >= min(40, swept["operations"]) > 3


@pytest.mark.slow
def test_training_goes_on_while_a_slow_disk_writes(faulty_disk, photos, tmp_path):  # noqa: F811
    result = json.loads(script(faulty_disk, "tests.disk_sweeps", "slow", "-", tmp_path, photos))

    print(result)
    first, second, _ = result["steps_during_saves"]
    assert min(first, second) > 5  # lines of the log, while fsync and rename take 0.3 s each
    assert result["codes"] == [0, 0, -9, 0] and result["problems"] == []


@pytest.mark.slow
def test_files_that_may_not_grow_end_a_run_with_its_checkpoints_intact(
    faulty_disk,  # noqa: F811
    photos,
    tmp_path,
):
    result = json.loads(script(faulty_disk, "tests.disk_sweeps", "sizes", "-", tmp_path, photos))

    print(result)
    assert result["codes"] == {"5": 20} and result["problems"] == []
