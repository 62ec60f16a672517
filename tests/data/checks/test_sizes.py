"""Sizes of images at a glance, against values counted by hand."""

from types import SimpleNamespace

import numpy as np

from vitcli.data.checks.sizes import describe

SPLIT = SimpleNamespace(where_is=lambda row: f"row {row}")


def described(*sides: tuple[int, int], rows: range | None = None) -> dict:
    """Describe images of (height, width); those between the rows could not be read."""
    hashes = SimpleNamespace(
        sides_N2=np.array(sides, np.int64).reshape(-1, 2), rows_N=rows or range(len(sides))
    )
    return describe(SPLIT, hashes)


def test_quantiles_are_those_of_an_image_by_rank():
    """Of 40 images 5 % are two, half are twenty, and 95 % are 38."""
    tall_first = [(1000 - number, 40 + number) for number in range(40)]

    found = described(*tall_first)

    assert found["short_side"] == {"min": 40, "p5": 41, "median": 59, "p95": 77, "max": 79}
    assert found["aspect"] == {
        "min": 0.04, "p5": round(41 / 999, 3), "median": round(59 / 981, 3), "p95": round(77 / 963, 3),
        "max": round(79 / 961, 3),
    }  # fmt: skip


def test_an_odd_image_is_called_by_its_row_in_the_split_and_its_width_by_height():
    sides = [(31, 40), (40, 31), (32, 96), (32, 97), (97, 32), (5000, 5000), (5000, 5001)]

    found = described(*sides, rows=range(10, 80, 10))

    assert found["small"] == ["row 10: 40x31", "row 20: 31x40"]
    assert found["long"] == ["row 40: 97x32", "row 50: 32x97"]
    assert found["large"] == ["row 70: 5001x5000"]


def test_a_split_without_a_readable_image_has_no_sizes():
    assert described() == {"short_side": None, "aspect": None, "large": [], "small": [], "long": []}
