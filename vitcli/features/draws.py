"""Few-shot accuracies: every draw of every number of shots fitted and scored on the same features.

Shared by `vit fewshot` and the probe inside training. N training rows, T test rows, D features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from vitcli.features import classifiers, least_squares

SWEEP = tuple(2.0**power for power in range(-10, 20))  # of the authors' older configurations
Draws = dict[int, dict[int, np.ndarray]]  # seed to shots to rows


@dataclass(frozen=True, eq=False)
class Problem:
    """Frozen features of a data set.

    Attributes:
        features_of: training rows to their features, (n, D).
        labels_N: of every training row.
        tests_TD: anything with a length that gives rows for a slice.
        test_labels_T: of the test rows.
        num_classes: of the data set.
    """

    features_of: Callable[[np.ndarray], np.ndarray]
    labels_N: np.ndarray
    tests_TD: Any
    test_labels_T: np.ndarray
    num_classes: int


@dataclass(frozen=True)
class Scored:
    """One draw, fitted.

    Attributes:
        seed: that the rows were drawn with.
        top1: share of the test rows that are right.
        chosen: what the classifier has chosen or was given: l2, neighbours or C; None where there is nothing.
    """

    seed: int
    top1: float
    chosen: float | int | None


def draw(labels_N: np.ndarray, *, num_classes: int, shots: Sequence[int], seeds: Sequence[int]) -> Draws:
    """The rows of every seed and number of shots, as the authors' evaluator draws them."""
    return {
        seed: least_squares.draw_shots(labels_N, num_classes=num_classes, shots=shots, seed=seed)
        for seed in seeds
    }


def drawn_rows(draws: Draws) -> np.ndarray:
    """Every row that is in any draw, once, in order."""
    return np.unique(np.concatenate([rows for by_shots in draws.values() for rows in by_shots.values()]))


def score(
    problem: Problem,
    draws: Draws,
    *,
    classifier: str,
    l2: float | str,
    watch: Callable[[int], None] = lambda done: None,
) -> dict[int, list[Scored]]:
    """By shots, the accuracy of each draw.

    Args:
        classifier: "least-squares" (paper, section 4.1), "knn", "ncm" or "logistic".
        l2: of least squares; "sweep" chooses it for each draw by leaving its rows out one at a time, and is
            the default where every row is alone in its class.
        watch: told after each draw how many are done.
    """
    found: dict[int, list[Scored]] = {}
    for seed, by_shots in draws.items():
        for shots, rows in by_shots.items():
            top1, chosen = _fit_and_score(problem, rows, classifier=classifier, l2=l2)
            found.setdefault(shots, []).append(Scored(seed, top1, chosen))
            watch(sum(map(len, found.values())))
    return dict(sorted(found.items()))


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation of a sample (ddof 1); None for one value."""
    return mean(values), stdev(values) if len(values) > 1 else None


def _fit_and_score(
    problem: Problem, rows: np.ndarray, *, classifier: str, l2: float | str
) -> tuple[float, float | int | None]:
    known, labels = problem.features_of(rows), problem.labels_N[rows]
    fits = {
        "knn": classifiers.nearest_neighbours,
        "ncm": classifiers.nearest_mean,
        "logistic": classifiers.logistic,
    }
    if classifier != "least-squares":
        predicted_T, chosen = fits[classifier](
            known, labels, problem.tests_TD, num_classes=problem.num_classes
        )
        return float((predicted_T == problem.test_labels_T).mean()), chosen
    if l2 == "sweep" and np.bincount(labels).max() == 1:
        l2 = least_squares.DEFAULT_L2
    strengths = SWEEP if l2 == "sweep" else (l2,)
    solution = least_squares.solve(known, labels, num_classes=problem.num_classes, l2=strengths)
    place = least_squares.choose_l2(solution) if l2 == "sweep" else 0
    found = least_squares.accuracies(solution, problem.tests_TD, problem.test_labels_T, which=[place])
    return float(found[0]), strengths[place]
