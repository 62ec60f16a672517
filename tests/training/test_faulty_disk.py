"""Every operation on the disk struck in turn: killed at it, failed once, failed from it on, failed late.

Whatever it was, the command ends with exit code 5 in three lines, no acknowledged step is gone, and the same
command afterwards ends as if nothing had happened, to the last bit.
"""

import json

import pytest

from tests.faulty_disk import FAULTS, MOST_FAULTS, faulty_disk, script  # noqa: F401, a fixture

RESULTS = (
    *("evaluate", "fewshot", "fewshot-cache", "selection", "embed", "embed-again", "predict-again"),
    # -again: in the place of an earlier one
    *("export-again", "export-npz-again", "export-onnx-again", "export-onnx-data-again"),
    *("download-cache", "download-hub", "stream-cache", "push"),  # from and to servers of this machine
)


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
@pytest.mark.parametrize("what", RESULTS)
def test_no_result_is_half_written_and_none_of_before_is_lost(faulty_disk, photos, tmp_path, what, fault):  # noqa: F811
    for package in ("onnxruntime", "onnxscript") if "onnx" in what else ():
        pytest.importorskip(package)
    if what == "stream-cache":
        pytest.importorskip("aiohttp")
    swept = json.loads(script(faulty_disk, "tests.disk_sweeps", what, fault, tmp_path, photos))

    print({key: value for key, value in swept.items() if key != "problems"})
    assert swept["problems"] == [] and swept["operations"] > 3
    assert swept["struck"] >= min(40, MOST_FAULTS or 40, swept["operations"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "EIO", "full", "late"])
@pytest.mark.parametrize("process", [0, 1])
def test_no_operation_of_one_process_of_two_loses_a_slice(faulty_disk, photos, tmp_path, process, fault):  # noqa: F811
    swept = json.loads(script(faulty_disk, "tests.disk_sweeps", f"shard-{process}", fault, tmp_path, photos))

    print({key: value for key, value in swept.items() if key != "problems"})
    assert swept["problems"] == [] and swept["struck"]  # not always the last one: their number varies by some


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
