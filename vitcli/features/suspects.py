"""Labels that the other images contradict, by exact leave-one-out of the closed form of `vit fewshot`.

The score of an image is what the closed form predicts for it when it, or its group, is left out
(`least_squares.left_out_scores`), at the l2 of the highest leave-one-out accuracy. The probability of a class
follows from how the left-out scores of its images lie:

    m_k     = (n_k mean of the left-out scores of class k + PRIOR ideal_k) / (n_k + PRIOR)
    logit_k = t (s_i m_k - |m_k|^2 / 2)        t: one inverse temperature, by maximum likelihood

These are Gaussian classes of one width around m_k. A class that is often mistaken for another one has a mean
that says so; ideal_k has the mean of all scores of the own class at k and that of all others elsewhere, which
gives back the calibrated scores of the closed form where a class has few images. The label of an image is
suspicious as its probability is small.

The probabilities are of labels, wrong ones included: with 5 % of wrong labels a correct one has 95 % at most.

N rows, D features, K classes, M neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitcli.errors import DataError
from vitcli.evaluation.belief.temperature import softmax_scale
from vitcli.features.draws import SWEEP
from vitcli.features.least_squares import choose_l2, has_others, left_out_accuracies, left_out_scores, solve

PRIOR = 50.0  # images that the ideal mean of a class counts as
NAMED_BELOW = 0.05  # probability of a label below which it is named as suspicious
LEAST_KNOWN = 0.8  # leave-one-out accuracy below which features know the classes too badly to judge a label
STRENGTHS = SWEEP[::2]
MOST_SIMILARITIES = 2**24  # float64 values: 128 MB


@dataclass(frozen=True, eq=False)
class LabelProbabilities:
    """What the other images say about the label of each image.

    Attributes:
        rows_N: all rows whose class has another row, or another group; the most suspicious first. Only these
            have a number.
        label_N: probability of the label of each of `rows_N`.
        other_N: the likeliest of the other classes.
        other_probability_N: its probability.
        margin_N: left-out score of the label minus the highest of another class, before calibration.
        num_named: how many of `rows_N`, from the first, are named as suspicious; none by features that do not
            know the classes, see LEAST_KNOWN.
        l2, top1: strength that was chosen, and its leave-one-out accuracy.
    """

    rows_N: np.ndarray
    label_N: np.ndarray
    other_N: np.ndarray
    other_probability_N: np.ndarray
    margin_N: np.ndarray
    num_named: int
    l2: float
    top1: float


def find_suspects(
    features_ND: np.ndarray, labels_N: np.ndarray, *, num_classes: int, groups_N: np.ndarray | None
) -> LabelProbabilities:
    """Return the probability of every label by all other images.

    Args:
        groups_N: of each row, whose images say nothing about each other; None without groups.

    Raises:
        DataError: fewer than two classes have an image, no class has two, or a feature is not finite.
    """
    num_classes_here = len(np.unique(labels_N))
    if num_classes_here < 2 or not has_others(labels_N, groups_N).any():
        most = np.bincount(labels_N).max()
        of_one = " of one group each" if groups_N is not None else ""
        raise DataError(
            f"{num_classes_here} classes of at most {most} images{of_one} say nothing about a label",
            where="the labels",
            fix="take data of two classes or more, and of several images in each",
        )
    # Exact left-out scores, of the rows whose class is known without them.
    about = {"num_classes": num_classes, "l2": STRENGTHS, "groups_N": groups_N}
    solution = solve(features_ND, labels_N, **about)
    accuracy_L = left_out_accuracies(solution)
    which = choose_l2(solution)
    rows_N = np.flatnonzero(solution.is_scored_N)
    scores_NK = left_out_scores(solution, which)[rows_N]
    about = {"l2": solution.l2[which], "top1": float(accuracy_L[which])}
    return by_left_out_scores(rows_N, scores_NK, labels_N[rows_N], **about)


def by_left_out_scores(
    rows_N: np.ndarray, scores_NK: np.ndarray, labels_N: np.ndarray, *, l2: float, top1: float
) -> LabelProbabilities:
    """Return the probability of the labels of some rows, each by scores of which it was left out.

    Args:
        l2, top1: of the solution, and its leave-one-out accuracy.
    """
    # Probabilities, and how the label compares with the likeliest other class.
    scores_NK, log_NK = scores_NK.copy(), log_probabilities(scores_NK, labels_N)
    every = np.arange(len(rows_N))
    label_N, score_N = log_NK[every, labels_N].copy(), scores_NK[every, labels_N].copy()
    log_NK[every, labels_N] = scores_NK[every, labels_N] = -np.inf
    other_N = log_NK.argmax(axis=1)
    order_N = np.argsort(label_N, kind="stable")
    return LabelProbabilities(
        rows_N=rows_N[order_N],
        label_N=np.exp(label_N[order_N]),
        other_N=other_N[order_N],
        other_probability_N=np.exp(log_NK[every, other_N][order_N]),
        margin_N=(score_N - scores_NK.max(axis=1))[order_N],
        num_named=int((label_N < np.log(NAMED_BELOW)).sum()) if top1 >= LEAST_KNOWN else 0,
        l2=l2,
        top1=top1,
    )


def log_probabilities(scores_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Return the log probability of each class (N, K) from left-out scores; see the top of the file.

    A class without a row keeps its ideal mean.
    """
    num_classes = scores_NK.shape[1]
    is_own_KK = np.eye(num_classes, dtype=bool)
    counts_K1 = np.bincount(labels_N, minlength=num_classes)[:, None]
    sums_KK = np.zeros((num_classes, num_classes))
    np.add.at(sums_KK, labels_N, scores_NK)
    means_KK = sums_KK / np.maximum(counts_K1, 1)
    # The mean score of the own class and of another one, over the classes that have rows.
    has_rows_K = counts_K1[:, 0] > 0
    own = means_KK[is_own_KK][has_rows_K].mean()
    other = means_KK[has_rows_K][~is_own_KK[has_rows_K]].mean()
    ideal_KK = np.where(is_own_KK, own, other)
    means_KK = (counts_K1 * means_KK + PRIOR * ideal_KK) / (counts_K1 + PRIOR)

    logits_NK = scores_NK @ means_KK.T - np.square(means_KK).sum(axis=1) / 2
    scale = softmax_scale(logits_NK, labels_N)
    logits_NK = scale * (logits_NK - logits_NK.max(axis=1, keepdims=True))
    return logits_NK - np.log(np.exp(logits_NK).sum(axis=1, keepdims=True))


def nearest_rows(
    features_ND: np.ndarray, rows: Sequence[int], *, count: int, groups_N: np.ndarray | None
) -> np.ndarray:
    """Return the rows of the M = `count` images most similar to each of `rows`, by cosine, (len(rows), M).

    An image is no neighbour of itself, nor of those of its group; M is smaller where there are fewer others.
    """
    directions_ND = np.asarray(features_ND, dtype=np.float64)
    norms_N1 = np.linalg.norm(directions_ND, axis=1, keepdims=True)
    directions_ND = directions_ND / np.maximum(norms_N1, np.finfo(np.float64).tiny)
    rows = np.asarray(rows, dtype=np.int64)
    groups_N = np.arange(len(directions_ND)) if groups_N is None else groups_N
    largest = np.unique(groups_N, return_counts=True)[1].max()
    count = min(count, len(directions_ND) - largest)
    found = [np.empty((0, count), dtype=np.int64)]
    for part in np.array_split(rows, -(-len(rows) * len(directions_ND) // MOST_SIMILARITIES) or 1):
        cosine_MN = directions_ND[part] @ directions_ND.T
        cosine_MN[groups_N[part, None] == groups_N] = -np.inf
        found.append(np.argsort(-cosine_MN, axis=1, kind="stable")[:, :count])
    return np.concatenate(found)
