"""Features on disk: what comes back is what was written, whatever happened to the file in between."""

import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors import safe_open

from vitcli.cache import user_cache
from vitcli.errors import MachineError
from vitcli.features.feature_store import (
    StoredFeatures,
    open_beside,
    open_cached,
    write_safetensors,
)
from vitcli.weights.io import digest_of

ABOUT = {"weights": "w", "data": "d"}
NUM_ROWS, NUM_FEATURES, NUM_LOGITS = 20, 3, 2


def outputs_of(rows: np.ndarray) -> np.ndarray:
    """Features and logits that tell their row."""
    return (rows[:, None] * 10 + np.arange(NUM_FEATURES + NUM_LOGITS)).astype(np.float32)


def add(store, *rows: int) -> None:
    numbers = np.array(rows)
    store.append(numbers, numbers[:, None] % 4, outputs_of(numbers), num_logits=NUM_LOGITS)


def rows_there(store) -> list[int]:
    """Rows the store claims to have; each is held to what was written."""
    rows = np.flatnonzero(store.has(np.arange(NUM_ROWS)))
    if len(rows):
        records = store.read(rows)
        assert records["row"].tolist() == rows.tolist()
        assert (records["labels"][:, 0] == rows % 4).all()
        assert (np.concatenate([records["features"], records["logits"]], axis=1) == outputs_of(rows)).all()
    return rows.tolist()


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "of"
    store = open_beside(path, ABOUT, NUM_ROWS)
    add(store, 4, 5, 6)
    add(store, 0, 19)
    add(store, 7)
    store.close()
    return path


def test_rows_come_back_in_any_order_and_over_blocks(filled):
    store = open_beside(filled, ABOUT, NUM_ROWS)

    assert store.notes == [] and store.width == (NUM_FEATURES, NUM_LOGITS, 1)
    assert rows_there(store) == [0, 4, 5, 6, 7, 19]
    assert store.read(np.array([19, 4, 6, 5, 7]))["row"].tolist() == [19, 4, 6, 5, 7]
    features = StoredFeatures(store, np.array([7, 0, 5]))
    assert (len(features), features.shape) == (3, (3, NUM_FEATURES))
    assert features[1:3][:, 0].tolist() == [0, 50]


def test_more_rows_go_behind_those_that_are_there(filled):
    store = open_beside(filled, ABOUT, NUM_ROWS)
    add(store, 1, 2)
    store.close()

    assert rows_there(open_beside(filled, ABOUT, NUM_ROWS)) == [0, 1, 2, 4, 5, 6, 7, 19]


def files_of(folder):
    (rows,) = folder.glob("rows-*")
    return folder / "index", rows


def test_rows_that_are_lost_while_a_store_is_open_are_an_error_of_the_machine(filled):
    store = open_beside(filled, ABOUT, NUM_ROWS)
    files_of(filled)[0].write_bytes(bytes(files_of(filled)[0].stat().st_size))

    with pytest.raises(MachineError, match="cannot be read back"):
        store.read(np.array([4]))


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_cut_off_anywhere_keeps_its_whole_rows(filled, tmp_path, number):
    length = files_of(filled)[number].stat().st_size
    for at in range(0, length, 40):
        copy = shutil.copytree(filled, tmp_path / str(at))
        os.truncate(files_of(copy)[number], at)

        store = open_beside(copy, ABOUT, NUM_ROWS)

        rows = rows_there(store)  # each is held to what was written
        assert (len(rows) == 6) <= (number == 1 and at > 6 * 64 - 24)
        add(store, 11)
        store.close()
        assert rows_there(open_beside(copy, ABOUT, NUM_ROWS)) == sorted([*rows, 11])


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_changed_byte_is_ever_read_as_a_feature(filled, step):
    """Every seventh byte is another one of each record, whose length is no multiple of seven."""
    for file in files_of(filled):
        content = file.read_bytes()
        for place in range(0, len(content), step):
            changed = bytearray(content)
            changed[place] ^= 0x40
            file.write_bytes(changed)

            rows_there(open_beside(filled, ABOUT, NUM_ROWS))  # each row it claims is checked there
        file.write_bytes(content)


def test_features_of_something_else_are_computed_anew(filled):
    store = open_beside(filled, ABOUT | {"data": "other"}, NUM_ROWS)

    assert rows_there(store) == []
    add(store, 3)
    assert rows_there(store) == [3]


def test_the_cache_finds_the_same_again_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = open_cached(ABOUT, NUM_ROWS)
    add(store, 3)
    store.close()

    again, other = (
        open_cached(dict(reversed(ABOUT.items())), NUM_ROWS),
        open_cached({"weights": "v"}, NUM_ROWS),
    )
    assert (rows_there(again), rows_there(other)) == ([3], [])
    assert user_cache.cache_folder("features") == tmp_path / "vit" / "features"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    store = open_cached(ABOUT, NUM_ROWS)

    add(store, 3, 1)
    assert rows_there(store) == [1, 3]
    assert len(store.notes) == 1 and "cannot be written" in store.notes[0]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "device"])
@pytest.mark.parametrize("name", ["index", "lock"])
def test_nothing_is_written_through_a_link_in_the_cache(tmp_path, monkeypatch, name, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_cached(ABOUT, NUM_ROWS).close()
    (folder,), elsewhere = user_cache.cache_folder("features").iterdir(), tmp_path / "elsewhere"
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else elsewhere)
    if kind == "link":
        elsewhere.write_bytes(b"precious")

    store = open_cached(ABOUT, NUM_ROWS)
    add(store, 3, 1)
    assert rows_there(store) == [1, 3]
    assert not store.is_kept and len(store.notes) == 1
    content = elsewhere.read_bytes() if elsewhere.exists() else None
    assert content == (b"precious" if kind == "link" else None)


@pytest.mark.parametrize("content", [bytes(8), bytes(80), b"\xff" * 12 + bytes(68), b"[]" * 40])
def test_a_row_of_another_program_is_missing(tmp_path, content):
    store = open_beside(tmp_path / "x", ABOUT, NUM_ROWS)
    store.rows.add(3, store._stamp, np.frombuffer(content, np.uint8).reshape(-1, 1, 1))
    store.close()

    store = open_beside(tmp_path / "x", ABOUT, NUM_ROWS)
    assert rows_there(store) == [] and store.width is None


def test_processes_share_what_each_of_them_computes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = open_cached(ABOUT, NUM_ROWS)
    add(first, 3)

    second = open_cached(ABOUT, NUM_ROWS)

    assert rows_there(second) == [3] and second.notes == []
    add(second, 4)
    assert rows_there(first) == rows_there(second) == [3, 4]


def test_features_beside_a_file_are_of_one_process(filled):
    store = open_beside(filled, ABOUT, NUM_ROWS)

    with pytest.raises(BlockingIOError):
        open_beside(filled, ABOUT, NUM_ROWS)
    assert len(rows_there(store)) == 6


def test_the_digest_sees_names_shapes_and_every_number():
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    other = {"a": torch.zeros(3, 2), "b": torch.ones(4)}
    moved = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    renamed = {"a": torch.zeros(2, 3), "c": torch.ones(4)}

    assert len({digest_of(each) for each in (tensors, other, moved, renamed)}) == 4
    assert digest_of(dict(reversed(tensors.items()))) == digest_of(tensors)


def test_safetensors_reads_what_is_written(filled, tmp_path):
    store = open_beside(filled, ABOUT, NUM_ROWS)
    rows = np.array([0, 4, 7])

    write_safetensors(
        tmp_path / "out.safetensors", store, rows, {"names": json.dumps(["ä", '"']), "format": "pt"}
    )

    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"names": json.dumps(["ä", '"']), "format": "pt"}
        read = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
    assert read["rows"].tolist() == [0, 4, 7] and read["labels"].tolist() == [0, 0, 3]
    both = torch.cat([read["features"], read["logits"]], dim=1)
    assert both.dtype == torch.float32 and (both.numpy() == outputs_of(rows)).all()


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """10 MB of features are taken up, written and read in 60 % of that."""
    count, width = 5_000, 512
    store = open_beside(tmp_path / "large", ABOUT, count)
    block = np.ones((500, width), np.float32)
    tracemalloc.start()
    for first in range(0, count, 500):
        rows = np.arange(first, first + 500)
        store.append(rows, rows[:, None], block, num_logits=0)
    store.close()
    store = open_beside(tmp_path / "large", ABOUT, count)
    write_safetensors(tmp_path / "out.safetensors", store, np.arange(count), {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (tmp_path / "out.safetensors").stat().st_size > 10e6
    assert peak < 6e6
