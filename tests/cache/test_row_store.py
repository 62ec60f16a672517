"""Rows of bytes on disk: what comes back was added, whatever was killed, damaged or full."""

import errno
import os
import resource
import signal
import time

import numpy as np
import pytest

from vitcli.cache import row_store, user_cache
from vitcli.data.image_cache import MemoryStore

ABOUT = {"name": "noise", "fingerprint": "f"}
NUM_ROWS = 60


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def image_of(row: int) -> np.ndarray:
    """An image that tells its row, of a size of its own."""
    rng = np.random.default_rng(row)
    return rng.integers(0, 256, (20 + row, 90 - row, 3), dtype=np.uint8)


def open_noise(**options):
    return row_store.open_cached("decoded", ABOUT, NUM_ROWS, **{"limit_bytes": 1e9} | options)


def rows_there(store, stamp: int = 5) -> list[int]:
    """The rows the store claims to have; each is held to what was added."""
    images = [store.get(row, stamp) for row in range(NUM_ROWS)]
    for row, image in enumerate(images):
        assert image is None or np.array_equal(image, image_of(row))
    return [row for row, image in enumerate(images) if image is not None]


def files_of_store():
    (folder,) = user_cache.cache_folder("decoded").iterdir()
    return folder, sorted(folder.glob("rows-*"))


@pytest.mark.parametrize("make", [open_noise, lambda: MemoryStore(1e9)])
def test_images_of_any_size_come_back_under_their_stamp_alone(make):
    store = make()
    for row in (3, 0, NUM_ROWS - 1, 3):
        assert store.add(row, 5, image_of(row))

    assert rows_there(store) == [0, 3, NUM_ROWS - 1]
    assert rows_there(store, stamp=6) == []
    view = np.asfortranarray(image_of(7))[::-1]
    store.add(7, 5, view)
    assert np.array_equal(store.get(7, 5), view)


def test_processes_see_at_once_what_others_add_and_a_later_one_finds_it():
    first, second = open_noise(), open_noise()
    first.add(1, 5, image_of(1))
    second.add(2, 5, image_of(2))
    assert rows_there(first) == rows_there(second) == [1, 2]
    first.close()
    second.close()

    assert rows_there(open_noise()) == [1, 2]
    assert row_store.is_stored("decoded", ABOUT)
    assert not row_store.is_stored("decoded", ABOUT | {"fingerprint": "g"})


def test_no_byte_of_a_damaged_file_is_ever_read_as_an_image():
    store = open_noise()
    for row in range(NUM_ROWS):
        store.add(row, 5, image_of(row))
    store.close()
    folder, (pixels,) = files_of_store()
    rng = np.random.default_rng(0)
    used = sum(-(-image_of(row).nbytes // 64) * 64 for row in range(NUM_ROWS))
    for path, size in ((folder / "index", NUM_ROWS * row_store.RECORD_BYTES), (pixels, used)):
        with open(path, "r+b") as file:
            for offset in rng.integers(0, size, 12):
                file.seek(offset)
                (byte,) = file.read(1)
                file.seek(offset)
                file.write(bytes([byte ^ 1 << int(rng.integers(8))]))

    there = rows_there(open_noise())
    assert NUM_ROWS - 24 <= len(there) < NUM_ROWS - 10
    again = open_noise()
    for row in {*range(NUM_ROWS)} - {*there}:
        again.add(row, 5, image_of(row))
    assert rows_there(open_noise()) == [*range(NUM_ROWS)]


@pytest.mark.parametrize("lost", ["pixels", "tail", "index", "empty"])
def test_lost_or_cut_files_are_missing_images(lost):
    store = open_noise()
    for row in range(10):
        store.add(row, 5, image_of(row))
    store.close()
    folder, (pixels,) = files_of_store()
    if lost == "pixels":
        pixels.unlink()
    elif lost == "tail":
        os.truncate(pixels, 1000)
    elif lost == "index":
        os.truncate(folder / "index", 100)
    else:  # as after a power failure that kept the index and not the pixels
        length = pixels.stat().st_size
        os.truncate(pixels, 0)
        os.truncate(pixels, length)

    again = open_noise()
    assert len(rows_there(again)) <= 2
    again.add(4, 5, image_of(4))
    assert 4 in rows_there(open_noise())


def start_writer(first_row: int) -> int:
    """Start a process that adds rows until it is killed; return its id."""
    process = os.fork()
    if process:
        return process
    while True:
        store = open_noise()
        for step in range(NUM_ROWS):
            row = (first_row + 7 * step) % NUM_ROWS
            store.add(row, 5, image_of(row))
        store.close()


@pytest.mark.slow
def test_killed_writers_leave_whole_images_or_none():
    """Two processes at a time add the same rows; each is killed at a random moment."""
    rng = np.random.default_rng(1)
    for _ in range(8):
        writers = [start_writer(int(row)) for row in rng.integers(0, NUM_ROWS, 2)]
        time.sleep(float(rng.uniform(0, 0.03)))
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        rows_there(open_noise())
    store = open_noise()
    for row in range(NUM_ROWS):
        store.add(row, 5, image_of(row))
    assert rows_there(open_noise()) == [*range(NUM_ROWS)]


def test_a_full_disk_ends_the_adding_and_keeps_what_is_there():
    store = open_noise()
    store.add(0, 5, image_of(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        added = [store.add(row, 5, image_of(row)) for row in range(1, 20)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert added[0] and not any(added[5:])
    assert store.problem.errno
    assert rows_there(store) == rows_there(open_noise()) == [0, *(np.flatnonzero(added) + 1)]


def test_no_process_adds_more_than_its_limit():
    for store in (open_noise(limit_bytes=30_000), MemoryStore(30_000)):
        for row in range(NUM_ROWS):
            store.add(row, 5, image_of(row))
        assert 20_000 < store.added_bytes <= 30_000 and store.problem is None
        assert len(rows_there(store)) == store.num_added


def test_a_store_in_use_is_not_deleted_and_a_deleted_one_is_begun_again():
    store = open_noise()
    store.add(1, 5, image_of(1))
    folder, _ = files_of_store()
    image = store.get(1, 5)

    assert not user_cache.delete(folder)
    store.close()
    assert user_cache.delete(folder) and not folder.exists()
    assert np.array_equal(image, image_of(1))  # what was read stays
    assert rows_there(open_noise()) == []


def test_what_others_use_is_no_room_and_what_nobody_uses_makes_room(monkeypatch):
    with_space = open_noise()
    for row in range(4):
        with_space.add(row, 5, image_of(row))
    old, (pixels,) = files_of_store()
    monkeypatch.setenv("VIT_CACHE_LIMIT", str(pixels.lstat().st_blocks * 512 + 60_000))
    about = {**ABOUT, "fingerprint": "g"}
    other = row_store.open_cached("decoded", about, NUM_ROWS, limit_bytes=1e9)
    added = [other.add(row, 5, image_of(row)) for row in range(NUM_ROWS)]

    assert old.exists() and 0 < sum(added) < 20 and other.problem is None
    with_space.close()
    more = row_store.open_cached("decoded", about, NUM_ROWS, limit_bytes=1e9)
    assert more.add(NUM_ROWS - 1, 5, image_of(NUM_ROWS - 1)) and not old.exists()


def test_a_record_that_is_torn_or_of_another_shape_is_a_missing_image():
    store = open_noise()
    store.add(1, 5, image_of(1))
    store.close()
    folder, _ = files_of_store()
    index = folder / "index"
    content, first = bytearray(index.read_bytes()), row_store.RECORD_BYTES
    stamp, segment, offset, height, width, *rest = row_store.PLACE.unpack_from(content, first)
    row_store.PLACE.pack_into(content, first, stamp, segment, offset, width, height, *rest)
    index.write_bytes(content)

    assert open_noise().get(1, 5) is None, "the same bytes, turned on their side"


@pytest.mark.parametrize("name", ["index", "lock"])
def test_no_link_in_a_store_is_followed(name, tmp_path):
    open_noise().close()
    folder, _ = files_of_store()
    (tmp_path / "mine").write_text("kept")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "mine")

    with pytest.raises(OSError):
        open_noise()
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_row_larger_than_a_segment_has_one_of_its_own(monkeypatch):
    monkeypatch.setattr(row_store.RowStore, "segment_bytes", 2_000)
    store = open_noise()
    for row in (1, 2):
        assert store.add(row, 5, image_of(row))

    assert rows_there(store) == rows_there(open_noise()) == [1, 2]
    _, segments = files_of_store()
    assert sorted(path.stat().st_size for path in segments) == [5_632, 5_824]


def test_a_file_system_without_locks_stores_all_the_same_and_nothing_of_it_is_deleted(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    store = open_noise()
    store.add(1, 5, image_of(1))
    store.close()

    assert rows_there(open_noise()) == [1]
    assert not user_cache.delete(files_of_store()[0])


def test_a_store_without_a_folder_ends_with_its_process():
    store = row_store.open_temporary(NUM_ROWS)
    for row in (3, 4):
        store.add(row, 5, image_of(row))

    assert rows_there(store) == [3, 4]
    assert not user_cache.cache_folder("decoded").exists()


def test_a_store_of_one_process_is_not_opened_by_another(tmp_path):
    store = row_store.open_folder(tmp_path / "rows", ABOUT, NUM_ROWS, is_shared=False)

    with pytest.raises(BlockingIOError):
        row_store.open_folder(tmp_path / "rows", ABOUT, NUM_ROWS, is_shared=False)
    store.close()
    row_store.open_folder(tmp_path / "rows", ABOUT, NUM_ROWS, is_shared=False).close()
