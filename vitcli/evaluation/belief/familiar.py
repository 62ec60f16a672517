"""How unlike the training images an image is: the relative Mahalanobis distance of its features.

Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection" (arXiv 2106.09022):

    distance(x) = min over k of (x - m_k)' S^-1 (x - m_k)  -  (x - m)' T^-1 (x - m)

m_k and S are the means of the classes and their shared covariance, m and T mean and covariance of all rows.
T follows from the others, so it is not stored:

    T = S + sum over k of n_k / N (m_k - m) (m_k - m)'

Both are shrunk towards a multiple of the identity, since few rows have a singular covariance. Subtracting the
second distance leaves what separates classes: features that vary alike in all images count in both.
N rows, D features, K classes.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SHRINKAGE = 0.01  # fraction of both covariances that is a multiple of the identity, of the same trace
FLAGGED = 0.01  # of images like the training ones lie beyond the threshold
LEAST = 49  # images to choose a threshold by: with fewer, more than 2 % would lie beyond the largest distance
NUM_FOLDS = 40  # of left-out distances; with 10 they are so much larger that half as many images are flagged
MOST_NUMBERS = 4_000_000  # of means and a triangle: 16 MB


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Means of classes and their shared covariance, as float32 numbers.

    Attributes:
        counts_K: rows of each class; a class without any has no distance.
        means_KD: zeros where there is no row.
        covariance_DD: within classes, divided by N.
    """

    counts_K: np.ndarray
    means_KD: np.ndarray
    covariance_DD: np.ndarray

    @cached_property
    def _mean_D(self) -> np.ndarray:
        return self.counts_K @ self.means_KD.astype(np.float64) / self.counts_K.sum()

    @cached_property
    def _inverses(self) -> tuple[np.ndarray, np.ndarray]:
        """S^-1 and T^-1, float64."""
        within_DD = self.covariance_DD.astype(np.float64)
        offsets_KD = self.means_KD - self._mean_D
        between_DD = (offsets_KD.T * (self.counts_K / self.counts_K.sum())) @ offsets_KD
        return np.linalg.inv(_shrunk(within_DD)), np.linalg.inv(_shrunk(within_DD + between_DD))

    def distances(self, features_ND: np.ndarray) -> np.ndarray:
        """Return the relative Mahalanobis distance of each row, (N,) float64."""
        within_DD, total_DD = self._inverses
        # (x - m_k)' P (x - m_k) = x'Px - 2 x'P m_k + m_k'P m_k, centred so that little cancels.
        centred_ND = features_ND.astype(np.float64) - self._mean_D
        means_CD = self.means_KD[self.counts_K > 0] - self._mean_D
        projected_DC = within_DD @ means_CD.T
        own_N = (centred_ND @ within_DD * centred_ND).sum(axis=1)
        to_classes_NC = -2 * centred_ND @ projected_DC + (means_CD.T * projected_DC).sum(axis=0)
        return own_N + to_classes_NC.min(axis=1) - (centred_ND @ total_DD * centred_ND).sum(axis=1)


def statistics_of(
    features_ND: np.ndarray, labels_N: np.ndarray, *, num_classes: int
) -> FeatureStatistics | None:
    """Return the statistics of training images; None of features that do not vary, or of too many numbers."""
    num_rows, width = features_ND.shape
    if num_classes * width + width * (width + 1) // 2 > MOST_NUMBERS:
        return None
    features_ND = features_ND.astype(np.float64)
    counts_K = np.bincount(labels_N, minlength=num_classes)
    sums_KD = np.zeros((num_classes, width))
    np.add.at(sums_KD, labels_N, features_ND)
    means_KD = sums_KD / np.maximum(counts_K, 1)[:, None]
    residuals_ND = features_ND - means_KD[labels_N]
    covariance_DD = residuals_ND.T @ residuals_ND / num_rows
    if not np.trace(covariance_DD) > 0:
        return None
    return FeatureStatistics(counts_K, means_KD.astype(np.float32), covariance_DD.astype(np.float32))


def left_out_distances(
    features_ND: np.ndarray, labels_N: np.ndarray, *, num_classes: int, groups_N: np.ndarray | None
) -> np.ndarray:
    """Return the distances of rows by the statistics of the other folds, (M,), of those that can be computed.

    A fold has every NUM_FOLDS-th group in the order of the classes; without groups (None) every such row.
    """
    groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N
    _, first_G, group_of_row_N = np.unique(groups_N, return_index=True, return_inverse=True)
    fold_G = np.empty(len(first_G), dtype=np.int64)
    fold_G[np.argsort(labels_N[first_G], kind="stable")] = np.arange(len(first_G)) % NUM_FOLDS
    fold_N = fold_G[group_of_row_N]
    distances = [np.zeros(0)]
    for fold in range(NUM_FOLDS):
        is_out_N = fold_N == fold
        if is_out_N.all() or not is_out_N.any():
            continue
        others = statistics_of(features_ND[~is_out_N], labels_N[~is_out_N], num_classes=num_classes)
        if others is not None:
            distances.append(others.distances(features_ND[is_out_N]))
    return np.concatenate(distances)


def threshold_of(distances_N: np.ndarray) -> tuple[float, float] | None:
    """Return the distance above which an image is unlike the training ones, and the fraction of others above.

    The fraction is FLAGGED, or 1 / (N + 1) of fewer images than 99; None of fewer than LEAST.
    """
    if len(distances_N) < LEAST:
        return None
    rank = max(1, math.floor((len(distances_N) + 1) * FLAGGED + 1e-9))
    return float(np.sort(distances_N)[-rank]), max(FLAGGED, 1 / (len(distances_N) + 1))


def _shrunk(covariance_DD: np.ndarray) -> np.ndarray:
    width = len(covariance_DD)
    return (1 - SHRINKAGE) * covariance_DD + SHRINKAGE * np.trace(covariance_DD) / width * np.eye(width)
