"""Labels of a split at a glance: images per class, classes of one name, the range of a number.

N images, M labels of an image, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from vitcli.data.dataset import DataSet, from_section
from vitcli.data.sources.class_folders import loosely
from vitcli.data.split import Split, base_of
from vitcli.errors import DataError
from vitcli.recipe.schema import Data


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


def read_labels(data: Data, split: str, num_images: int) -> tuple[SplitLabels | None, str | None]:
    """Return the labels of a split, or why they cannot be read.

    Classes are tried before numbers to predict.

    Args:
        num_images: that the split has without its labels; a table that differs is another one.
    """
    reasons = []
    for numbers in (False, True):
        try:
            source = from_section(data, partial(DataSet, numbers=numbers))
            # Without its labels a file of numbers is a folder of images, whose split has another name.
            is_of_numbers = numbers and not source.has_split(base_of(split))
            opened = source.open(source.only_split("--split") if is_of_numbers else split)
            if opened.is_large:
                return None, f"{opened.name} is too large to read all labels first"
            if len(opened) != num_images:
                return None, f"{opened.name} has {len(opened):,} labelled images of {num_images:,}"
            return _labels_of(opened), None
        except DataError as error:
            reasons.append(error.message)
    return None, reasons[0]


def _labels_of(split: Split) -> SplitLabels:
    names = split.class_names or tuple(f"class {label}" for label in range(split.num_classes))
    return SplitLabels(tuple(names), split.read_labels(), split.has_numbers)


def describe(labels: SplitLabels | None) -> dict[str, Any] | None:
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
    largest, smallest = (pick(present, key=present.get, default=None) for pick in (max, min))
    return {
        "kind": "class" if labels.is_one_class_each else "several",
        "num_classes": len(counts),
        "images_per_class": counts,
        "largest": largest,
        "smallest": smallest,
        "ratio": present[largest] / present[smallest] if present else None,
        "empty": [name for name, count in counts.items() if not count],
        "num_unlabelled": 0 if labels.is_one_class_each else int((labels.labels < 0).all(axis=1).sum()),
    }


def alike_classes(class_names: Sequence[str]) -> list[list[str]]:
    """Return groups of names that are equal but for case, blanks and the encoding of accents."""
    by_name: dict[str, list[str]] = {}
    for name in sorted(set(class_names)):
        by_name.setdefault(loosely(name), []).append(name)
    return [names for names in by_name.values() if len(names) > 1]
