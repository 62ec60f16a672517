"""Labels and sizes of a split at a glance, against values counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import data_section
from vitcli.data.checks import splits
from vitcli.data.checks.splits import NoLabels, SplitLabels, describe_labels, describe_sizes, read_labels
from vitcli.data.sources.class_folders import alike_classes
from vitcli.errors import DataError

NAMES = ("ant", "bee", "cat", "dog")


def test_classes_are_counted_and_those_without_images_are_neither_largest_nor_smallest():
    found = describe_labels(SplitLabels(NAMES, np.array([2, 0, 2, 2, 3, 0]), has_numbers=False))

    assert found == {
        "kind": "class",
        "num_classes": 4,
        "images_per_class": {"ant": 2, "bee": 0, "cat": 3, "dog": 1},
        "largest": "cat",
        "smallest": "dog",
        "ratio": 3.0,
        "empty": ["bee"],
        "num_unlabelled": 0,
    }


def test_each_of_several_labels_counts_and_images_without_any_are_unlabelled():
    labels_NM = np.array([[0, 2], [2, -1], [-1, -1], [1, -1], [-1, -1]])

    found = describe_labels(SplitLabels(NAMES, labels_NM, has_numbers=False))

    assert found["kind"] == "several" and found["num_unlabelled"] == 2
    assert found["images_per_class"] == {"ant": 1, "bee": 1, "cat": 2, "dog": 0}


def test_no_label_at_all_has_no_largest_class():
    found = describe_labels(SplitLabels(NAMES, np.full((2, 1), -1), has_numbers=False))

    assert (found["largest"], found["smallest"], found["ratio"]) == (None, None, None)
    assert found["empty"] == list(NAMES)


def test_names_are_alike_but_for_case_blanks_and_accents():
    names = ["Bär", "rose", "Rose", "Ba\N{COMBINING DIAERESIS}r", "wild rose", "wild  rose", "tulip", "tulip"]

    assert {frozenset(group) for group in alike_classes(names)} == {
        frozenset(("Rose", "rose")),
        frozenset(("Bär", "Ba\N{COMBINING DIAERESIS}r")),
        frozenset(("wild  rose", "wild rose")),
    }


def test_labels_of_another_table_than_the_images_are_not_read(photos):
    section = data_section(photos)
    labels, none = read_labels(section, "train", 24)
    assert labels.class_names == ("green", "red") and labels.counts() == {"green": 12, "red": 12}
    assert none is None and labels.name_of(0) == labels.class_names[labels.labels[0]]

    labels, why = read_labels(section, "train", 25)
    assert labels is None
    assert why == NoLabels(f"{photos}, split train has 24 labelled images of 25", stops=False)


def test_labels_that_cannot_be_read_have_the_reason_why_they_are_no_classes(monkeypatch):
    """Numbers to predict are the second attempt; a stream is not read for its labels."""
    reasons = iter([DataError("no classes", where="", fix=""), DataError("no number", where="", fix="")])

    def fail(section: object, *, numbers: bool) -> None:
        raise next(reasons)

    monkeypatch.setattr(splits, "from_section", fail)
    assert read_labels("data", "train", 5) == (None, NoLabels("no classes", stops=False))

    stream = SimpleNamespace(is_large=True, name="shards, split train")
    monkeypatch.setattr(splits, "from_section", lambda *_, **__: SimpleNamespace(open=lambda split: stream))
    reason = "shards, split train is too large to read all labels first"
    assert read_labels("data", "train", 5) == (None, NoLabels(reason, stops=False))


@pytest.mark.parametrize(("has_numbers", "labels"), [(True, [1.0]), (False, [[0, 1]])])
def test_a_row_has_one_class_or_none(has_numbers, labels):
    assert SplitLabels(NAMES, np.array(labels), has_numbers=has_numbers).name_of(0) is None


SPLIT = SimpleNamespace(where_is=lambda row: f"row {row}")


def described(*sides: tuple[int, int], rows: range | None = None) -> dict:
    """Describe images of (height, width); those between the rows could not be read."""
    hashes = SimpleNamespace(
        sides_N2=np.array(sides, np.int64).reshape(-1, 2), rows_N=rows or range(len(sides))
    )
    return describe_sizes(SPLIT, hashes)


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
