"""Images that are kept once they are read and decoded."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vitcli.data import dataset, loader
from vitcli.data.image_cache import MemoryBudget, cached


@pytest.fixture
def split(photos):
    return dataset.DataSet(str(photos)).open("train")


def test_a_cached_split_has_the_same_bytes_pixels_labels_and_fingerprint(split):
    memory = MemoryBudget(1e9)
    again = cached(split, memory)

    for row in (0, 23, 0):
        image, label = split.read_row(row)
        assert again.read_row(row) == (image, label)
        pixels_HWC, _ = loader.read_example(again, row)
        assert np.array_equal(pixels_HWC, np.asarray(Image.open(io.BytesIO(image))))
    assert again.fingerprint == split.fingerprint
    assert memory.num_decoded == 2


def test_rows_are_read_once_as_long_as_there_is_room(split):
    reads = []
    counted = replace(split, read_row=lambda row: reads.append(row) or split.read_row(row))
    num_bytes = len(split.read_row(0)[0])
    memory = MemoryBudget(num_bytes)  # for the file of the first and not for its pixels
    again = cached(counted, memory)

    for row in (0, 1, 0, 1):
        loader.read_example(again, row)

    assert reads == [0, 1, 1]
    assert (memory.used, memory.num_decoded) == (num_bytes, 0)


def test_parts_of_a_cached_split_share_its_cache(split):
    memory = MemoryBudget(1e9)
    again = cached(split, memory)

    for part in (again.part(0, 12, name="a"), again.part(5, 20, name="b")):
        for row in range(len(part)):
            loader.read_example(part, row)

    assert memory.num_decoded == 20
