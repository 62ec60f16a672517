"""A split at a glance: images per class or the range of a number; short sides, aspect ratios, slow images.

N images, M labels of an image, K classes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitcli.data.dataset import from_section
from vitcli.data.parts.image_hashes import ImageHashes
from vitcli.data.sources.class_folders import AdditionalClasses
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.recipe.schema import Data

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
LARGE_PIXELS = 25_000_000  # above it one image takes about half a second to decode; 89 million are refused
SMALL_SIDE = 32  # pixels; two patches of 16
LONG_ASPECT = 3.0  # above it a centre crop of the short side shows less than a third of the image


@dataclass(frozen=True, eq=False)
class SplitLabels:
    """The labels of a split.

    Attributes:
        class_names: in the order of the label numbers; of numbers to predict the name of their column.
        labels: (N,) int64; (N, M) padded with -1 of several labels; (N,) float64 of numbers to predict.
        has_numbers: whether the labels are numbers to predict.
    """

    class_names: tuple[str, ...]
    labels: np.ndarray
    has_numbers: bool

    @property
    def is_one_class_each(self) -> bool:
        return not self.has_numbers and self.labels.ndim == 1

    def name_of(self, row: int) -> str | None:
        """Return the class of a row; None where an image has several or a number."""
        return self.class_names[self.labels[row]] if self.is_one_class_each else None

    def counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        labels = self.labels[self.labels >= 0]
        counts_K = np.bincount(labels, minlength=len(self.class_names))
        return dict(zip(self.class_names, counts_K.tolist(), strict=True))


class NoLabels(NamedTuple):
    """Why the labels of a split are not read, and whether that would stop a run."""

    reason: str
    stops: bool = False


def read_labels(data: Data, split: str, num_images: int) -> tuple[SplitLabels | None, NoLabels | None]:
    """Return the labels of a split, or why they cannot be read.

    Args:
        num_images: that the split has without its labels; a table that differs is another one.
    """
    reasons = []
    for numbers in (False, True):
        try:
            opened = from_section(data, numbers=numbers).open(split)
            if opened.is_large:
                return None, NoLabels(f"{opened.name} is too large to read all labels first")
            if len(opened) != num_images:
                return None, NoLabels(f"{opened.name} has {len(opened):,} labelled images of {num_images:,}")
            names = tuple(opened.readable_class_names)
            return SplitLabels(names, opened.read_labels(), opened.has_numbers), None
        except DataError as error:
            reasons.append(NoLabels(error.message, isinstance(error, AdditionalClasses)))
    return None, reasons[0]


def describe_labels(labels: SplitLabels | None) -> dict[str, Any] | None:
    """Return the labels of a split as JSON; None where there are none."""
    if labels is None:
        return None
    if labels.has_numbers:
        numbers_N = labels.labels
        return {
            "kind": "number",
            "column": labels.class_names[0],
            "min": float(numbers_N.min()),
            "median": float(np.median(numbers_N)),
            "max": float(numbers_N.max()),
        }
    counts = labels.counts()
    present = {name: count for name, count in counts.items() if count}
    largest, smallest = (pick(present, key=present.__getitem__, default="") for pick in (max, min))
    return {
        "kind": "class" if labels.is_one_class_each else "several",
        "num_classes": len(counts),
        "images_per_class": counts,
        "largest": largest if present else None,
        "smallest": smallest if present else None,
        "ratio": present[largest] / present[smallest] if present else None,
        "empty": [name for name, count in counts.items() if not count],
        "num_unlabelled": 0 if labels.is_one_class_each else int((labels.labels < 0).all(axis=1).sum()),
    }


def describe_sizes(split: Split, hashes: ImageHashes) -> dict[str, Any]:
    """Return quantiles of short side and aspect ratio (width / height), and the places of odd images."""
    height_N, width_N = hashes.sides_N2.T
    short_N, long_N = np.minimum(height_N, width_N), np.maximum(height_N, width_N)
    odd = {
        "large": height_N * width_N > LARGE_PIXELS,
        "small": short_N < SMALL_SIDE,
        "long": long_N > LONG_ASPECT * short_N,
    }
    places = {
        name: [
            f"{split.where_is(int(hashes.rows_N[i]))}: {width_N[i]}x{height_N[i]}"
            for i in np.flatnonzero(is_odd_N)
        ]
        for name, is_odd_N in odd.items()
    }
    if not len(short_N):
        return {"short_side": None, "aspect": None, **places}
    return {
        "short_side": _quantiles(short_N, digits=0),
        "aspect": _quantiles(width_N / height_N, digits=3),
        **places,
    }


def _quantiles(values_N: np.ndarray, *, digits: int) -> dict[str, float]:
    """Return the values at QUANTILES, each that of an image: the nearest rank below."""
    values = np.quantile(values_N, QUANTILES, method="inverted_cdf").tolist()
    names = ("min", "p5", "median", "p95", "max")
    return {name: round(value, digits) for name, value in zip(names, values, strict=True)}
