"""The images that the scales of int8 are measured on."""

import numpy as np
import pytest

from vitcli.data.dataset import DataSet
from vitcli.export.calibration import evenly


@pytest.mark.parametrize("most", [1, 7, 24, 100])
def test_they_are_spread_over_a_split_that_is_sorted_by_class(photos, most):
    split = DataSet(str(photos)).open("train")  # twelve green, then twelve red
    chosen = evenly(split, most)

    assert len(chosen) == min(most, 24)
    counts = np.bincount(chosen.read_labels(), minlength=2)
    assert abs(counts[0] - counts[1]) <= 1
    places = [split.where_is(row) for row in range(24)]
    rows = [places.index(chosen.where_is(row)) for row in range(len(chosen))]
    assert rows == sorted({*rows}) and rows[0] == 0 and rows[-1] == (23 if most > 1 else 0)
