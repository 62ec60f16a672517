"""Labels of a split at a glance, against counts made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import data_section
from vitcli.data.checks import classes
from vitcli.data.checks.classes import NoLabels, SplitLabels, alike_classes, describe, read_labels
from vitcli.errors import DataError

NAMES = ("ant", "bee", "cat", "dog")


def test_classes_are_counted_and_those_without_images_are_neither_largest_nor_smallest():
    found = describe(SplitLabels(NAMES, np.array([2, 0, 2, 2, 3, 0]), has_numbers=False))

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

    found = describe(SplitLabels(NAMES, labels_NM, has_numbers=False))

    assert found["kind"] == "several" and found["num_unlabelled"] == 2
    assert found["images_per_class"] == {"ant": 1, "bee": 1, "cat": 2, "dog": 0}


def test_no_label_at_all_has_no_largest_class():
    found = describe(SplitLabels(NAMES, np.full((2, 1), -1), has_numbers=False))

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

    def fail(section: object, kind: object) -> None:
        raise next(reasons)

    monkeypatch.setattr(classes, "from_section", fail)
    assert read_labels("data", "train", 5) == (None, NoLabels("no classes", stops=False))

    stream = SimpleNamespace(is_large=True, name="shards, split train")
    monkeypatch.setattr(classes, "from_section", lambda *_: SimpleNamespace(open=lambda split: stream))
    reason = "shards, split train is too large to read all labels first"
    assert read_labels("data", "train", 5) == (None, NoLabels(reason, stops=False))


@pytest.mark.parametrize(("has_numbers", "labels"), [(True, [1.0]), (False, [[0, 1]])])
def test_a_row_has_one_class_or_none(has_numbers, labels):
    assert SplitLabels(NAMES, np.array(labels), has_numbers=has_numbers).name_of(0) is None
