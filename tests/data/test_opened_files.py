"""What a command keeps of image files that it has opened: while they stay the same and there is room."""

import os

import pytest

from tests.folders import classes, image
from vitcli.data import columns, seen_images
from vitcli.data.dataset import DataSet


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("vitcli.data.columns.CLOCK_TICK_NS", 0)
    classes(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The files that are read, in their order."""
    read_regular, files = columns.read_regular, []
    monkeypatch.setattr(
        columns, "read_regular", lambda path, most: files.append(path) or read_regular(path, most)
    )
    return files


def test_a_file_that_was_read_to_be_recognised_is_not_opened_to_be_decoded(folder, reads):
    split = DataSet(str(folder)).open("train")
    digests_N = seen_images.digests_of(split)
    part = split.part(2, 9, name="some", shuffle_key=1)

    assert len(reads) == 12 and [part.read_row(row)[0] for row in range(7)]
    assert seen_images.digests_of(part).tolist() == [
        digests_N[[split.read_row(r)[0] for r in range(12)].index(part.read_row(row)[0])] for row in range(7)
    ]
    assert len(reads) == 12


def test_an_image_that_is_only_decoded_is_not_kept(folder, reads):
    split = DataSet(str(folder)).open("train")

    assert split.read_row(3) == split.read_row(3)
    assert len(reads) == 2


def test_a_file_that_has_changed_is_read_again(folder, reads):
    split = DataSet(str(folder)).open("train")
    before = seen_images.digests_of(split)
    image(folder / "bee" / "1.png", 200)

    after = seen_images.digests_of(split)
    assert [row for row in range(12) if before[row] != after[row]] == [5]
    assert len(reads) == 13
    assert split.read_row(5)[0] == (folder / "bee" / "1.png").read_bytes()


def test_without_room_only_what_was_found_out_is_kept(folder, reads, monkeypatch):
    monkeypatch.setattr("vitcli.data.split.MEMORY_FRACTION", 0)
    split = DataSet(str(folder)).open("train")

    assert seen_images.digests_of(split).tolist() == seen_images.digests_of(split).tolist()
    assert len(reads) == 12
    split.read_row(0)
    assert len(reads) == 13


def test_a_file_that_has_just_been_written_is_read_each_time(folder, reads, monkeypatch):
    monkeypatch.setattr("vitcli.data.columns.CLOCK_TICK_NS", 10**18)
    split = DataSet(str(folder)).open("train")
    seen_images.digests_of(split)
    seen_images.digests_of(split)

    assert len(reads) == 24


def test_a_missing_file_is_unreadable_each_time_and_found_once_it_is_there(folder):
    (folder / "ant" / "0.png").rename(folder / "away")
    os.symlink(folder / "ant" / "gone.png", folder / "ant" / "0.png")
    split = DataSet(str(folder)).open("train")
    assert seen_images.digests_of(split)[0] == seen_images.UNREADABLE

    (folder / "away").rename(folder / "ant" / "gone.png")
    assert seen_images.digests_of(split)[0] != seen_images.UNREADABLE
