"""What the predictions of a run show, on a hand-made case, and the rules of what would help."""

from dataclasses import replace

import numpy as np
import pytest

from vitcli.data.dataset import DataSet
from vitcli.evaluation.diagnosis import advice, findings, median_short_side
from vitcli.evaluation.predictions import Predictions

NAMES = ("ant", "bee", "cow", "dog")
#          ant x 4        bee x 4        cow x 2  dog x 2
LABELS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
CHOSEN = [0, 0, 0, 1, 0, 0, 1, 1, 2, 2, 0, 3]
SURE = [0.9, 0.9, 0.9, 0.97, 0.6, 0.99, 0.9, 0.9, 0.9, 0.9, 0.5, 0.9]
COUNTS = np.array([40, 30, 20, 4])


@pytest.fixture
def facts():
    labels, classes, zeros = np.array(LABELS), np.array(CHOSEN)[:, None], np.zeros(12)
    wrong = (labels != classes[:, 0]).astype(int)
    predictions = Predictions(np.arange(12), labels, wrong, zeros, classes, np.array(SURE)[:, None])
    return findings(predictions, NAMES, [f"{row}.png" for row in range(12)], COUNTS)


def test_the_facts_of_a_hand_made_case(facts):
    assert (facts["majority_class"], facts["majority_top1"]) == ("ant", pytest.approx(4 / 12))
    keys = ("class", "num_right", "num_examples", "num_train")
    worst = [tuple(row[key] for key in keys) for row in facts["worst_classes"]]
    assert worst == [("bee", 2, 4, 30), ("dog", 1, 2, 4), ("ant", 3, 4, 40)]
    assert facts["confused"][0] == {"class": "bee", "predicted": "ant", "count": 2}
    assert (facts["num_mistakes"], facts["num_sure_mistakes"]) == (4, 2)
    assert [row["place"] for row in facts["confident_mistakes"]] == ["5.png", "3.png", "4.png"]
    assert facts["train_counts"] == [4, 25, 40]


def advised(facts, **changes):
    given = dict(
        interval=(0.9, 0.95), side=224, short_side=None, patch_size=16, is_balanced=False, num_for_folds=None
    )
    return advice(facts, **given | changes)


def test_each_rule_names_its_number(facts):
    more, balance, mistakes, pair = advised(facts)
    assert more.startswith("more images of dog: 4 to train on")
    assert balance.startswith("--set data.sampling=balanced, as classes have 4 to 40")
    assert (
        mistakes == "a look at confident mistakes: 2 held-out images called another class with at least 95%"
    )
    assert pair == "images that tell ant from bee: 3 of 4 mistakes"
    assert not any("balanced" in line for line in advised(facts, is_balanced=True))


def test_resolution_and_a_wide_interval(facts):
    facts |= {"worst_classes": [], "confused": [], "num_sure_mistakes": 0}
    assert advised(facts, is_balanced=True) == []
    (line,) = advised(facts, is_balanced=True, short_side=400)
    assert line.startswith("--res 384,")
    assert advised(facts, is_balanced=True, short_side=330) == []  # less than 1.5 times
    (line,) = advised(facts, is_balanced=True, short_side=500, patch_size=14)
    assert line.startswith("--res 448,")
    (line,) = advised(facts, is_balanced=True, interval=(0.8, 0.95))
    assert line == "more images to score: the 95 % interval is 15 points wide"
    (line,) = advised(facts, is_balanced=True, interval=(0.8, 0.95), num_for_folds=121)
    assert line == "--folds 5 scores all 121 images"
    assert advised(facts, is_balanced=True, interval=(0.8, 0.89), num_for_folds=121) == []
    (line,) = advised(facts, is_balanced=True, interval=(0.8, 0.95), num_for_folds=50_000)
    assert "15 points wide" in line


def test_half_the_median_of_training_images_is_enough(facts):
    few = next(row for row in facts["worst_classes"] if row["class"] == "dog")
    facts |= {"worst_classes": [few | {"num_train": 12}], "train_counts": [12, 24, 30]}
    assert not any("more images" in line for line in advised(facts))
    facts["worst_classes"][0]["num_train"] = 11
    assert advised(facts)[0].startswith("more images of dog: 11 to train on, median of classes 24")


def test_a_mistake_at_95_percent_is_a_label_to_check_and_the_most_frequent_class_that_of_training():
    labels, classes, zeros = np.array([0, 1]), np.array([[1], [1]]), np.zeros(2)
    predictions = Predictions(
        np.arange(2), labels, np.array([1, 0]), zeros, classes, np.array([[0.95], [0.9]])
    )

    found = findings(predictions, ("ant", "bee"), ["0.png", "1.png"], np.array([3, 4]))
    assert found["num_sure_mistakes"] == 1 and found["majority_class"] == "bee"


@pytest.mark.parametrize(
    ("short_side", "patch_size", "advised_side"),
    [(1_000, 16, 448), (1_000, None, 448), (400, 32, 384), (400, None, 384), (500, 28, 448), (400, 14, None)],
)
def test_a_larger_side_is_at_most_twice_as_large_and_of_whole_patches(
    facts, short_side, patch_size, advised_side
):
    facts |= {"worst_classes": [], "confused": [], "num_sure_mistakes": 0}
    lines = advised(facts, is_balanced=True, short_side=short_side, patch_size=patch_size)

    assert [line.split(",")[0] for line in lines] == [f"--res {side}" for side in [advised_side] if side]


def test_the_side_of_an_image_is_its_shorter_one():
    read_row = lambda row: (np.zeros((30, 50 + row, 3), np.uint8), 0)  # noqa: E731

    assert median_short_side(replace(DataSet("demo").open("test[:5]"), read_row=read_row)) == 30
