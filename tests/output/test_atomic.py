"""Files written whole or not at all; readers that tolerate what a crash or another program left."""

import pytest

from vitcli.errors import MachineError
from vitcli.output.atomic import read_json, read_jsonl


@pytest.mark.parametrize("text", ['{"top1": 0.', "[1, 2]", "\0", "[" * 100_000])
def test_a_damaged_file_or_one_without_an_object_reads_as_no_object(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)

    assert read_json(tmp_path / "summary.json") is None
    assert read_json(tmp_path / "missing.json") is None
    assert read_json(tmp_path) is None


def test_records_that_are_cut_off_or_no_objects_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n7\n\xff\n{"step": 2}\n{"step": 3, "lo')

    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]
    assert read_jsonl(tmp_path / "missing.jsonl") == []


def test_records_that_may_not_be_read_are_an_error_of_the_machine(tmp_path):
    with pytest.raises(MachineError, match="cannot be read: Is a directory"):
        read_jsonl(tmp_path)
