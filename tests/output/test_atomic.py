"""Files written whole or not at all; readers that tolerate what a crash or another program left."""

import errno
import os
from pathlib import Path

import pytest

from vitcli.errors import MachineError, VitError
from vitcli.output import atomic
from vitcli.output.atomic import (
    check_can_write_in,
    check_out,
    make_folder,
    read_json,
    read_jsonl,
    replace_file,
    write_text,
)


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


def test_another_suffix_is_refused():
    with pytest.raises(VitError, match=r"p\.csv does not end in \.parquet or \.pq"):
        check_out(Path("p.csv"), overwrite=True, suffixes=(".parquet", ".pq"))


def test_an_existing_file_is_refused_unless_it_is_to_be_overwritten(tmp_path):
    (tmp_path / "report.html").write_text("mine")

    with pytest.raises(VitError, match=r"report\.html already exists") as refusal:
        check_out(tmp_path / "report.html", overwrite=False)
    assert refusal.value.exit_code == 2 and "--overwrite" in refusal.value.fix
    check_out(tmp_path / "report.html", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_file_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()

    with pytest.raises(MachineError, match="nothing can be written") as refusal:
        check_out(tmp_path / "file" / "report.html", overwrite=False)
    assert refusal.value.exit_code == 5 and "is a file" in refusal.value.where
    with pytest.raises(MachineError, match="is a folder"):
        check_out(tmp_path / "folder.html", overwrite=True)
    with pytest.raises(MachineError, match="nothing can be written"):
        check_out(Path("/proc/x/report.html"), overwrite=True)
    check_out(tmp_path / "deep" / "er" / "report.html", overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.html"]


@pytest.mark.parametrize(
    "check",
    [lambda path: check_out(path, overwrite=True), lambda path: check_can_write_in(path, option="--out")],
)
def test_a_path_that_cannot_be_looked_up_is_refused_with_its_option(check, tmp_path, monkeypatch):
    with pytest.raises(MachineError, match="nothing can be written") as refusal:
        check(tmp_path / ("x" * 300 + ".html"))
    assert "--out: xxx" in refusal.value.where and "File name too long" in refusal.value.where

    def unsearchable(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", unsearchable)  # of root every folder can be searched
    with pytest.raises(MachineError, match="nothing can be written") as refusal:
        check(tmp_path / "report.html")
    assert refusal.value.where == "--out: report.html: Permission denied"


def test_a_folder_is_made_with_nothing_in_it(tmp_path):
    for _ in range(2):  # it may be there
        make_folder(tmp_path / "deep" / "out", option="--out")

    assert list((tmp_path / "deep/out").iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/x", "/tmp/" + "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused_whatever_permissions_say(folder):
    with pytest.raises(MachineError, match="nothing can be written") as refusal:
        make_folder(Path(folder), option="--out")
    assert ".tmp" not in str(refusal.value)


def test_a_file_has_the_usual_permissions_also_if_its_writer_restricts_them(tmp_path):
    usual, path = tmp_path / "usual", tmp_path / "folder" / "weights"
    usual.touch()

    def write(file):  # as safetensors does: a new file of its own, renamed into place
        restricted = tmp_path / "restricted"
        restricted.touch(mode=0o600)
        restricted.rename(file)

    replace_file(path, write)

    assert path.stat().st_mode == usual.stat().st_mode
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text("earlier")

    def write(file):
        file.write_text("half")
        raise OSError("no space left on device")

    with pytest.raises(MachineError, match="was not written: no space left"):
        replace_file(path, write)

    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "earlier"
    with pytest.raises(MachineError, match="was not written"):
        write_text(path / "below", "a file is no folder")


def test_what_killed_commands_have_left_of_a_file_is_deleted_after_an_hour(tmp_path):
    stale = ["table.csv-0123456789abcdef", "table.csv-fedcba9876543210"]
    others = ["table.csv.features", "other.csv-0123456789abcdef", "table.csv-0-0123456789abcdef"]
    for name in (*stale, *others):
        (tmp_path / f".tmp-{name}").write_text("half")
        os.utime(tmp_path / f".tmp-{name}", (1e9, 1e9))
    (tmp_path / ".tmp-table.csv-1111111111111111").write_text("of a command that still runs")

    write_text(tmp_path / "table.csv", "whole")

    left = {"table.csv", ".tmp-table.csv-1111111111111111", *(f".tmp-{name}" for name in others)}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_what_follows_a_line_without_end_is_left_out(tmp_path):
    with (tmp_path / "log.jsonl").open("wb") as file:
        file.write(b'{"step": 1}\n')
        file.truncate(2**40)

    assert read_jsonl(tmp_path / "log.jsonl") == [{"step": 1}]


def test_pipes_devices_and_values_without_end_are_read_as_nothing(tmp_path, in_ten_seconds):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "long").write_text('{"step": ' + "9" * 5_000 + "}")
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "link").symlink_to("elsewhere.json")

    assert [read_json(tmp_path / name) for name in ("pipe", "endless", "deep", "long")] == [None] * 4
    assert read_json(tmp_path / "link") == {}
    for name in ("pipe", "endless"):
        with pytest.raises(MachineError, match="it is a pipe or a device"):
            read_jsonl(tmp_path / name)


def test_a_file_is_on_disk_before_it_takes_its_name_and_its_name_before_anybody_hears_of_it(
    tmp_path, monkeypatch
):
    done, path = [], tmp_path / "summary.json"

    def name_of(path: Path) -> str:
        return "NEW" if Path(path).name.startswith(".tmp-summary.json-") else Path(path).name

    def note(what: str, function):
        def noted(*paths):
            done.append(" ".join([what, *map(name_of, paths)]))
            return function(*paths)

        return noted

    monkeypatch.setattr(atomic, "sync", note("sync", atomic.sync))
    monkeypatch.setattr(os, "replace", note("replace", os.replace))
    write_text(path, "whole")
    monkeypatch.undo()

    assert done == ["sync NEW", "replace NEW summary.json", f"sync {tmp_path.name}"]
    assert path.read_text() == "whole"
