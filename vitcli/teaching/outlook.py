"""How many labels make sense: the learning curve of `vit fewshot --forecast` on the labels so far.

A third of the labels is held out to score the closed form on ever larger parts of the others. What is said
is of images like the labelled ones, which were chosen because they are hard.

N labelled images, D features.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vitcli.features.draws import DrawScore, FewshotProblem, score_draws
from vitcli.output.text import interval_text

TIMES = (1, 2, 4, 10)  # as many labels
WITHIN = 0.01  # of the accuracy with the most of them
WIDEST = 0.1  # interval of an accuracy that says anything
LEAST_ROWS, MOST_ROWS = 150, 1_000
MORE = 1.1  # as many labels as the last time


class Outlook:
    """The sentence about how many labels make sense, computed draw by draw while a person looks.

    Attributes:
        text: the latest sentence; "" while none can be estimated.
    """

    def __init__(self, features_ND: np.ndarray, groups_N: np.ndarray):
        self.text, self._features_ND, self._groups_N = "", features_ND, groups_N
        self._least, self._draws = float(LEAST_ROWS), iter(())

    def step(self, labels: Mapping[int, str]) -> str:
        """Compute one draw of the curve, or begin one if there are enough more labels; return the sentence.

        Args:
            labels: by row; "" stands for none.
        """
        if next(self._draws, None) is None:
            rows = [row for row, label in labels.items() if label]
            if len(rows) >= self._least:
                self._least = MORE * len(rows)
                _, labels_N = np.unique([labels[row] for row in rows], return_inverse=True)
                self._draws = self._look(np.array(rows), labels_N)
        return self.text

    def _look(self, rows_N: np.ndarray, labels_N: np.ndarray) -> Iterator[int]:
        """Yield after each draw, and set the sentence at the end."""
        from vitcli.features import forecast  # it loads what figures need, half a second

        # A third of the groups is held out; a class that is there alone does not count.
        num_labels, rng = len(rows_N), np.random.default_rng(0)
        chosen = rng.permutation(num_labels)[:MOST_ROWS]
        rows_N, labels_N = rows_N[chosen], labels_N[chosen]
        groups, group_of_N = np.unique(self._groups_N[rows_N], return_inverse=True)
        is_held_out_N = (rng.permutation(len(groups)) % 3 == 0)[group_of_N]
        classes, train_labels_N = np.unique(labels_N[~is_held_out_N], return_inverse=True)
        tests_T, train_N = np.flatnonzero(is_held_out_N & np.isin(labels_N, classes)), rows_N[~is_held_out_N]
        if len(tests_T) < forecast.LEAST_TESTED or len(train_N) < forecast.LEAST_PER_CLASS * len(classes):
            return
        problem = FewshotProblem(
            features_of=lambda rows: self._features_ND[train_N[rows]],
            labels_N=train_labels_N,
            tests_TD=self._features_ND[rows_N[tests_T]],
            test_labels_T=np.searchsorted(classes, labels_N[tests_T]),
            num_classes=len(classes),
            groups_N=self._groups_N[train_N],
        )
        draws = forecast.curve_draws(
            train_labels_N,
            num_classes=len(classes),
            rows_N=np.arange(len(train_N)),
            groups_N=problem.groups_N,
        )
        scores: dict[int, list[DrawScore]] = {}
        for seed, by_size in draws.items():
            for size, rows in by_size.items():
                scored = score_draws(problem, {seed: {size: rows}}, classifier="least-squares", l2="sweep")
                scores.setdefault(size, []).extend(scored[size])
                yield size
        # The curve is of the rows that are not held out, and the labels are more.
        times = [number * num_labels / len(train_N) for number in TIMES]
        curve = forecast.forecast(forecast.curve_points(scores), num_tests=len(tests_T), times=times)
        self.text = _sentence(curve, num_labels)


def _sentence(curve: Mapping[str, Any], num_labels: int) -> str:
    """Return how many labels come near what ten times as many would bring; "" where that is unknown."""
    predictions = [*curve["predictions"].values()]
    most = predictions[-1]
    if curve["too_early"] or most["high"] - most["low"] > WIDEST:
        return ""
    near = (
        pair
        for pair in zip(TIMES, predictions, strict=True)
        if pair[1]["accuracy"] >= most["accuracy"] - WITHIN
    )
    times, reached = next(near)
    right = f"{interval_text((reached['low'], reached['high']))} % right on images as hard as these"
    if times == 1:
        return f"Enough labels: ten times as many would bring less than a point ({right})."
    number = f"{round(times * num_labels, -1):,}"
    return f"About {number} labels come within a point of what more would bring ({right})."
