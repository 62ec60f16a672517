"""Sets of classes that hold the label of an image with a promised probability.

Split conformal prediction with the least ambiguous sets (LAC: Sadinle et al., arXiv 1609.00451): a set has
all classes whose probability is at least a threshold, chosen on n images that the weights were not fitted to,

    threshold = the floor((n + 1) (1 - coverage))-th smallest probability of a label

For images drawn like those n, the label is in the set with a probability of `coverage` at least, whatever the
network is. It is the quantile ceil((n + 1) coverage) / n of 1 - probability. If no n images can promise so
much, n + 1 < 1 / (1 - coverage), the set has all classes. N rows, K classes.
"""

import numpy as np

LEVELS = (90, 95, 99)  # promised coverage in percent
SHOWN = 95  # that of the sets that `vit predict` prints and `vit evaluate` names first
LEAST = 19  # images: with fewer no set of SHOWN % leaves out any class


def threshold_at(label_probabilities_N: np.ndarray, level: int) -> float | None:
    """Return the least probability of a class in sets of `level` percent coverage; None: all classes."""
    rank = (len(label_probabilities_N) + 1) * (100 - level) // 100  # in integers: a product of floats is none
    return float(np.partition(label_probabilities_N, rank - 1)[rank - 1]) if rank else None


def sets_at(probabilities_NK: np.ndarray, threshold: float | None) -> np.ndarray:
    """Return which classes are in the set of each row, (N, K) bool; the top class always is.

    The promise holds without that rule too. It serves the reader: where the accuracy is above the coverage,
    sets without it are often empty.
    """
    if threshold is None:
        return np.ones(probabilities_NK.shape, dtype=bool)
    is_in_NK = probabilities_NK >= threshold
    is_in_NK[np.arange(len(probabilities_NK)), probabilities_NK.argmax(axis=1)] = True
    return is_in_NK


def coverage_and_size(is_in_NK: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    """Return the fraction of rows whose set has the label, and the mean number of classes in a set."""
    covered_N = is_in_NK[np.arange(len(labels_N)), labels_N]
    return float(covered_N.mean()), float(is_in_NK.sum(axis=1).mean())
