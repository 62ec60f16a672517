"""What the predictions of a finished run show: its weak classes, and what would help most, by stated rules.

Letters: N rows, K classes.
"""

import io
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.evaluation.predictions import Predictions, confusion, most_confident_mistakes
from vitcli.output.text import count_of

MEASURED = 25  # images whose sizes are looked at
SHOWN = 3  # classes, pairs and mistakes
FEW = 0.5  # of the median number of images per class: fewer are few
UNBALANCED = 3.0  # the largest class against the smallest
LARGER = 1.5  # images with this many times the input's side are large
COMMON_PAIR, LEAST_OF_PAIR = 0.25, 3  # of the mistakes, and in number
SURE = 0.95  # probability of a class that is not that of the label
WIDE = 10.0  # points, the 95 % interval of the accuracy
MOST_ADVICE = 4
NUM_FOLDS = 5
FOLDS_OPTION = f"--folds {NUM_FOLDS}"
MOST_FOR_FOLDS = 5_000  # images of which each is to be scored
SIDES = (224, 256, 288, 320, 384, 448, 512)  # pixels of inputs to advise


def findings(
    predictions: Predictions, class_names: Sequence[str], places: Sequence[str], train_counts_K: np.ndarray
) -> dict[str, Any]:
    """Return the majority class, the worst classes, the most confused pairs and the most confident errors.

    Args:
        predictions: of rows with one label each.
        places: of each prediction: the file of its image, or its row.
        train_counts_K: training images of each class.
    """
    num_classes, wrong = len(class_names), ~predictions.is_right_N
    counts_K = np.bincount(predictions.labels, minlength=num_classes)
    right_K = np.bincount(predictions.labels, weights=~wrong, minlength=num_classes)
    majority = int(train_counts_K.argmax())
    imperfect = [k for k in np.flatnonzero(counts_K).tolist() if right_K[k] < counts_K[k]]
    worst = sorted(imperfect, key=lambda k: (right_K[k] / counts_K[k], -counts_K[k]))[:SHOWN]
    pairs = sorted(zip(*confusion(predictions, num_classes), strict=True), key=lambda pair: -pair[2])
    confused = [pair for pair in pairs if pair[0] != pair[1]][:SHOWN]
    return {
        "majority_class": class_names[majority],
        "majority_top1": float(counts_K[majority] / len(predictions)),
        "worst_classes": [
            {
                "class": class_names[k],
                "num_right": int(right_K[k]),
                "num_examples": int(counts_K[k]),
                "num_train": int(train_counts_K[k]),
            }
            for k in worst
        ],
        "confused": [
            {"class": class_names[label], "predicted": class_names[other], "count": int(count)}
            for label, other, count in confused
        ],
        "num_mistakes": int(wrong.sum()),
        "num_sure_mistakes": int((predictions.confidences_N[wrong] >= SURE).sum()),
        "confident_mistakes": [
            {
                "place": places[row],
                "class": class_names[predictions.labels[row]],
                "predicted": class_names[predictions.classes_NT[row, 0]],
                "probability": float(predictions.confidences_N[row]),
            }
            for row in most_confident_mistakes(predictions, SHOWN)
        ],
        "train_counts": [int(train_counts_K.min()), int(median(train_counts_K)), int(train_counts_K.max())],
    }


def median_short_side(split: Split) -> int | None:
    """Return the median short side in pixels of a few images, of their headers; None if none can be read."""
    sides = []
    for row in np.linspace(0, len(split) - 1, min(MEASURED, len(split))).astype(int):
        with suppress(DataError, OSError, ValueError):
            image = split.image_of(int(row))
            size = Image.open(io.BytesIO(image)).size if isinstance(image, bytes) else image.shape[:2]
            sides.append(min(size))
    return int(median(sides)) if sides else None


def advice(
    facts: dict[str, Any],
    *,
    interval: Sequence[float],
    side: int | None,
    short_side: int | None,
    patch_size: int | None,
    is_balanced: bool,
    num_for_folds: int | None,
) -> list[str]:
    """Return what would help most, a sentence each with the number that it follows from; at most four.

    Args:
        facts: see `findings`.
        interval: 95 % interval of the accuracy.
        side: pixels of the square input; None for others.
        short_side: the median short side of the training images in pixels; None if it is unknown.
        is_balanced: whether the run has weighted its classes by their sizes, or drawn images by class.
        num_for_folds: images that could be scored by folds; None where they were, or cannot be.
    """
    smallest, middle, largest = facts["train_counts"]
    lines = []
    for row in facts["worst_classes"][:2]:
        if row["num_train"] < FEW * middle:
            lines.append(
                f"more images of {row['class']}: {row['num_train']} to train on, median of classes {middle}"
            )
    if facts["num_mistakes"] and not is_balanced and largest >= UNBALANCED * max(1, smallest):
        lines.append(f"--set data.sampling=balanced, as classes have {smallest} to {largest} training images")
    if facts["num_sure_mistakes"]:
        images = count_of(facts["num_sure_mistakes"], "held-out image")
        lines.append(f"a look at confident mistakes: {images} called another class with at least {SURE:.0%}")
    if pair := _common_pair(facts):
        one, other, count = pair
        lines.append(
            f"images that tell {one} from {other}: {count} of {count_of(facts['num_mistakes'], 'mistake')}"
        )
    if larger := _larger_side(side, short_side, patch_size) if facts["num_mistakes"] else None:
        lines.append(
            f"--res {larger}, as half of the images have {short_side} px or more, and {side} are used"
        )
    width = 100 * (interval[1] - interval[0])
    if width > WIDE and num_for_folds and num_for_folds <= MOST_FOR_FOLDS:
        lines.insert(0, f"{FOLDS_OPTION} scores all {num_for_folds:,} images")
    elif width > WIDE:
        lines.append(f"more images to score: the 95 % interval is {width:.0f} points wide")
    return lines[:MOST_ADVICE]


def _common_pair(facts: dict[str, Any]) -> tuple[str, str, int] | None:
    """Return two classes that are taken for each other in many of the mistakes, and in how many."""
    counts: dict[tuple[str, str], int] = {}
    for row in facts["confused"]:
        one, other = sorted((row["class"], row["predicted"]))
        counts[one, other] = counts.get((one, other), 0) + row["count"]
    if not counts:
        return None
    (one, other), count = max(counts.items(), key=lambda item: item[1])
    is_common = count >= LEAST_OF_PAIR and count >= COMMON_PAIR * facts["num_mistakes"]
    return (one, other, count) if is_common else None


def _larger_side(side: int | None, short_side: int | None, patch_size: int | None) -> int | None:
    """Return a larger input that the images have the pixels for, at most twice as large."""
    if not side or not short_side or short_side < LARGER * side:
        return None
    sides = [s for s in SIDES if side < s <= min(short_side, 2 * side) and s % (patch_size or 1) == 0]
    return max(sides, default=None)
