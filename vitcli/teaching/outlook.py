"""How many labels make sense: the learning curve of `vit fewshot --forecast` on the labels so far.

A third of the labels is held out to score the closed form on ever larger parts of the others. What is said
is of images like the labelled ones, which were chosen because they are hard.

N labelled images, D features.
"""

import threading
from collections.abc import Mapping
from functools import partial

import numpy as np

from vitcli.features import forecast
from vitcli.features.draws import FewshotProblem, score_draws
from vitcli.output.text import interval_text

TIMES = (1, 2, 4, 10)  # as many labels
WITHIN = 0.01  # of the accuracy with the most of them
MORE = 1.1  # as many labels as the last time
MOST_ROWS = 3_000
WIDEST = 0.1  # interval of an accuracy that says anything


class Outlook:
    """The sentence about how many labels make sense, computed beside the clicks; `text` is the latest."""

    def __init__(self, features_ND: np.ndarray, groups_N: np.ndarray):
        self.text, self._next_at = "", 3.0 * forecast.LEAST_TESTED
        self._thread = threading.Thread()
        self._sentence = partial(sentence, features_ND, groups_N)

    def update(self, labels: Mapping[int, str]) -> None:
        """Look again, in the background, if there are enough more labels; "" stands for none."""
        rows = [row for row, label in labels.items() if label]
        if len(rows) >= self._next_at and not self._thread.is_alive():
            self._next_at = len(rows) * MORE
            _, labels_N = np.unique([labels[row] for row in rows], return_inverse=True)
            self._thread = threading.Thread(target=self._look, args=(np.array(rows), labels_N), daemon=True)
            self._thread.start()

    def _look(self, rows_N: np.ndarray, labels_N: np.ndarray) -> None:
        self.text = self._sentence(rows_N, labels_N)


def sentence(features_ND: np.ndarray, groups_N: np.ndarray, rows_N: np.ndarray, labels_N: np.ndarray) -> str:
    """Return how many labels come near what ten times as many would bring; "" while that cannot be told.

    Args:
        features_ND, groups_N: of all images.
        rows_N, labels_N: the labelled images, and the numbers of their classes.
    """
    num_labels = len(rows_N)
    # A third of the groups is held out; a class that is there alone does not count.
    chosen = np.random.default_rng(0).permutation(len(rows_N))[:MOST_ROWS]
    rows_N, labels_N = rows_N[chosen], labels_N[chosen]
    groups, group_of_N = np.unique(groups_N[rows_N], return_inverse=True)
    is_held_out_N = (np.random.default_rng(1).permutation(len(groups)) % 3 == 0)[group_of_N]
    classes, train_labels_N = np.unique(labels_N[~is_held_out_N], return_inverse=True)
    tests_T = np.flatnonzero(is_held_out_N & np.isin(labels_N, classes))
    too_few = len(train_labels_N) < forecast.LEAST_PER_CLASS * len(classes)
    if len(classes) < 2 or too_few or len(tests_T) < forecast.LEAST_TESTED:
        return ""
    # The curve of the others, carried on to all labels and more.
    train_rows_N = rows_N[~is_held_out_N]
    about = {"num_classes": len(classes), "groups_N": groups_N[train_rows_N]}
    problem = FewshotProblem(
        features_of=lambda rows: features_ND[train_rows_N[rows]],
        labels_N=train_labels_N,
        tests_TD=features_ND[rows_N[tests_T]],
        test_labels_T=np.searchsorted(classes, labels_N[tests_T]),
        **about,
    )
    draws = forecast.curve_draws(train_labels_N, rows_N=np.arange(len(train_labels_N)), **about)
    points = forecast.curve_points(score_draws(problem, draws, classifier="least-squares", l2="sweep"))
    of_train = len(rows_N) / len(train_rows_N)
    curve = forecast.forecast(points, num_tests=len(tests_T), times=[of_train * times for times in TIMES])
    predictions = [*curve["predictions"].values()]
    most = predictions[-1]
    if curve["too_early"] or most["high"] - most["low"] > WIDEST:
        return ""
    near = zip(TIMES, predictions, strict=True)
    times, reached = next(pair for pair in near if pair[1]["accuracy"] >= most["accuracy"] - WITHIN)
    right = f"{interval_text((reached['low'], reached['high']))} % right on images as hard as these"
    if times == 1:
        return f"Enough labels: ten times as many would bring less than a point ({right})."
    number = f"{round(times * num_labels, -1):,}"
    return f"About {number} labels come within a point of what more would bring ({right})."
