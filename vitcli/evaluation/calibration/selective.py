"""Selective classification: below a threshold of its highest probability an image is left to a person.

A threshold answers some of the images (its coverage) and is wrong about some of these (its selective risk):
El-Yaniv and Wiener, JMLR 11 (2010); Geifman and El-Yaniv (arXiv 1705.08500). Recommended is the lowest one at
which GOAL of the answered images are right, on images that the weights were not fitted to. N rows, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitcli.evaluation.intervals import interval_of
from vitcli.output.text import count_of, interval_text

GOAL = 0.99  # of the answered images are right
LEAST = 30  # images that have to be answered: fewer show little even where all are right
TRIED = (*(k / 100 for k in range(100)), *(k / 1_000 for k in range(991, 1_000)),
         *(k / 10_000 for k in range(9_991, 10_000)))  # fmt: skip
SHOWN = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class OperatingPoint:
    """How many images have at least this probability and so are answered, and how many of these right."""

    threshold: float
    answered: int
    right: int

    @property
    def accuracy(self) -> float:
        """The fraction of the answered images that is right; 0.0 if there are none."""
        return self.right / max(1, self.answered)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def operating_points(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> tuple[OperatingPoint, ...]:
    """Return what the thresholds SHOWN and the one to recommend do with these rows, the lowest first."""
    tried = points_at(TRIED, probabilities_NK.max(axis=1), probabilities_NK.argmax(axis=1) == labels_N)
    best = recommended(tried)
    return tuple(point for point in tried if point == best or point.threshold in SHOWN)


def points_at(
    thresholds: Sequence[float], confidences_N: np.ndarray, is_right_N: np.ndarray
) -> list[OperatingPoint]:
    """Return what these thresholds do with predictions of this probability, each right or wrong."""
    order_N = np.argsort(confidences_N)
    # How many of the rows from each on are right, and at the end of none.
    num_right_N1 = np.append(np.cumsum(is_right_N[order_N][::-1])[::-1], 0)
    firsts = np.searchsorted(confidences_N[order_N], thresholds)  # at the threshold is answered
    return [
        OperatingPoint(float(threshold), len(order_N) - first, int(num_right_N1[first]))
        for threshold, first in zip(thresholds, firsts.tolist(), strict=True)
    ]


def recommended(points: Sequence[OperatingPoint]) -> OperatingPoint | None:
    """Return the lowest threshold that reaches GOAL, else the one nearest to it; None of too few images."""
    enough = [point for point in points if point.answered >= LEAST]
    reached = [point for point in enough if point.accuracy >= GOAL]
    if reached:
        return min(reached, key=lambda point: point.threshold)
    return max(enough, key=lambda point: (point.accuracy, -point.threshold), default=None)


def results_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a result about thresholds, by what is stored: see `Calibration.facts`.

    "advice" says in a line which threshold to take, and on how many images that is known.
    """
    points = [OperatingPoint(**point) for point in facts["thresholds"]]
    best, num_images = recommended(points), facts["num_images"]
    of_images = count_of(num_images, "dev image" if facts["fingerprint"] else "left-out training image")
    return {
        "advice": _advice(best, num_images, of_images),
        "recommended": best and best.as_json(),
        "num_images": num_images,
        "points": facts["thresholds"],
    }


def table_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return threshold, fraction answered, fraction of these right and its 95 % interval, as text.

    Thresholds that answer nothing, or the same images as one before, are left out.
    """
    rows: list[tuple[str, str, str, str]] = []
    answered = None
    for point in (OperatingPoint(**point) for point in result["points"]):
        if point.answered not in (0, answered):
            interval = interval_text(interval_of(point.accuracy, point.answered))
            fraction = f"{point.answered / result['num_images']:.1%}"
            rows.append((f"{point.threshold:g}", fraction, f"{point.accuracy:.1%}", interval))
        answered = point.answered
    return rows


def _advice(best: OperatingPoint | None, num_images: int, of_images: str) -> str:
    if best is None:
        return f"none recommended: that takes {LEAST} images to try it on, and there are {num_images}"
    evidence = f"(95 %: {interval_text(interval_of(best.accuracy, best.answered))}; {of_images})"
    missed = "" if best.accuracy >= GOAL else f"; {GOAL:.0%} is not reached"
    if best.threshold == 0:
        word = "recommended" if missed else "needed for images like the training ones"
        return f"none {word}: {best.accuracy:.1%} right {evidence}{missed}"
    answered = f"{best.answered / num_images:.1%} answered, {best.accuracy:.1%} of these right"
    return f"at --threshold {best.threshold:g}: {answered} {evidence}{missed}"
