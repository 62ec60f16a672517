"""How unlike the training images an image is: the distance of its features, and the doubt about its class.

    score(x) = distance(x) + doubt_weight (1 - highest probability(x))

The distance is the relative Mahalanobis distance of Ren et al., "A Simple Fix to Mahalanobis Distance for
Improving Near-OOD Detection" (arXiv 2106.09022):

    distance(x) = min over k of (x - m_k)' S^-1 (x - m_k)  -  (x - m)' T^-1 (x - m)

m_k and S are the means of the classes and their shared covariance, m and T mean and covariance of all rows.
T follows from the others, so it is not stored:

    T = S + sum over k of n_k / N (m_k - m) (m_k - m)'

Both are shrunk towards a multiple of the identity, since few rows have a singular covariance. Subtracting the
second distance leaves what separates classes: features that vary alike in all images count in both.

Images from elsewhere lie far away and may have a probability near 1; images of a new class among those of the
data lie near, and are doubtful. So both count: the weight gives them the same standard deviation on images
like the training ones, and no doubt is a match for a large distance. How much to shrink, and whether doubt
helps, is chosen for each classifier: classes are left out in turn, and where another score than the first
candidate tells their images from those of the others by more than a standard error better, it is taken.

N rows, D features, K classes, F folds, S candidates.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vitcli.evaluation.calibration.scaling import DIGITS, Scaling
from vitcli.evaluation.class_metrics import one_against_rest

# Fraction of both covariances that is a multiple of the identity, of the same trace. The first is best where
# rows are few, the last where they are many; 1 would forget how features vary together.
SHRINKAGES = (0.5, 0.1, 0.01)
CANDIDATES = tuple((shrinkage, has_doubt) for has_doubt in (True, False) for shrinkage in SHRINKAGES)
FLAGGED = 0.01  # of images like the training ones lie beyond the threshold
LEAST = 49  # images to choose a threshold by: with fewer, more than 2 % would lie beyond the largest distance
NUM_FOLDS = 40  # of left-out distances; with 10 they are so much larger that half as many images are flagged
NUM_CLASS_FOLDS = 10  # of left-out classes, and of left-out rows beside them
WEAK = 0.7  # AUROC of left-out classes: below it most images of a new class pass for those of the data
LEAST_CLASSES = 3  # to leave one out and have a choice between others
MOST_NUMBERS = 4_000_000  # of means and a triangle: 16 MB


@dataclass(frozen=True)
class UnlikeScore:
    """Which score says how unlike the training images an image is, and what classes left out show of it.

    Attributes:
        shrinkage: of both covariances.
        doubt_weight: of 1 - the highest probability; 0: the distance alone.
        auroc: how often an image of a left-out class has a higher score than one of the others; None where
            there are too few classes or images to leave any out.
        auroc_of_doubt: the same of 1 - the highest probability alone.
    """

    shrinkage: float = SHRINKAGES[0]
    doubt_weight: float = 0.0
    auroc: float | None = None
    auroc_of_doubt: float | None = None

    def of(
        self, statistics: "FeatureStatistics", features_ND: np.ndarray, probabilities_NK: np.ndarray
    ) -> np.ndarray:
        """Return the score of each row, (N,) float64."""
        distances_N = statistics.distances(features_ND, shrinkage=self.shrinkage)
        return distances_N + self.doubt_weight * doubts(probabilities_NK)

    def weighted(self, distances_N: np.ndarray, doubts_N: np.ndarray) -> "UnlikeScore":
        """Return the score whose doubts have the deviation of the distances of these rows, if it counts them.

        The weight is rounded, as all that is stored.
        """
        weight = _weight_for(distances_N, doubts_N) if self.doubt_weight else 0.0
        return replace(self, doubt_weight=float(f"{weight:.{DIGITS}g}"))


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
    def _inverses(self) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """S^-1 and T^-1, float64, of each shrinkage that was asked for: images come one by one."""
        return {}

    def _inverses_at(self, shrinkage: float) -> tuple[np.ndarray, np.ndarray]:
        if shrinkage not in self._inverses:
            within_DD = self.covariance_DD.astype(np.float64)
            offsets_KD = self.means_KD - self._mean_D
            between_DD = (offsets_KD.T * (self.counts_K / self.counts_K.sum())) @ offsets_KD
            within, total = (_shrunk(each_DD, shrinkage) for each_DD in (within_DD, within_DD + between_DD))
            self._inverses[shrinkage] = np.linalg.inv(within), np.linalg.inv(total)
        return self._inverses[shrinkage]

    def distances(self, features_ND: np.ndarray, *, shrinkage: float) -> np.ndarray:
        """Return the relative Mahalanobis distance of each row, (N,) float64."""
        within_DD, total_DD = self._inverses_at(shrinkage)
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


def doubts(probabilities_NK: np.ndarray) -> np.ndarray:
    """Return 1 - the highest probability of each row, (N,)."""
    return 1 - probabilities_NK.max(axis=1)


def folds_of_rows(labels_N: np.ndarray, groups_N: np.ndarray | None, *, num_folds: int) -> np.ndarray:
    """Return the fold of each row, (N,): every num_folds-th group in the order of the classes is in one.

    Without groups (None) each row is its own.
    """
    groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N
    _, first_G, group_of_row_N = np.unique(groups_N, return_index=True, return_inverse=True)
    fold_G = np.empty(len(first_G), dtype=np.int64)
    fold_G[np.argsort(labels_N[first_G], kind="stable")] = np.arange(len(first_G)) % num_folds
    return fold_G[group_of_row_N]


def folds_of_classes(labels_N: np.ndarray, *, num_classes: int) -> np.ndarray | None:
    """Return the fold of each class, (K,), of at most NUM_CLASS_FOLDS; None of fewer than LEAST_CLASSES.

    Classes without rows are in one, too. Neighbours in the order of names are in different ones.
    """
    num_known = len(np.unique(labels_N))
    if num_known < LEAST_CLASSES:
        return None
    fold_K = np.zeros(num_classes, dtype=np.int64)
    fold_K[np.unique(labels_N)] = np.arange(num_known) % NUM_CLASS_FOLDS
    return fold_K


def left_out_distances(
    features_ND: np.ndarray,
    labels_N: np.ndarray,
    *,
    num_classes: int,
    groups_N: np.ndarray | None,
    shrinkage: float,
) -> np.ndarray:
    """Return the distance of each row by the statistics of the other folds, (N,); NaN where none exist."""
    fold_N = folds_of_rows(labels_N, groups_N, num_folds=NUM_FOLDS)
    distances_N = np.full(len(labels_N), np.nan)
    for fold in range(NUM_FOLDS):
        is_out_N = fold_N == fold
        if is_out_N.all() or not is_out_N.any():
            continue
        others = statistics_of(features_ND[~is_out_N], labels_N[~is_out_N], num_classes=num_classes)
        if others is not None:
            distances_N[is_out_N] = others.distances(features_ND[is_out_N], shrinkage=shrinkage)
    return distances_N


@dataclass(frozen=True, eq=False)
class LeftOutRows:
    """Rows to choose a score by, of which each fold of classes is left out in turn.

    Attributes:
        features_ND, labels_N: of all rows.
        fold_N: of each row, as many as of classes. The statistics of a fold have no row of it.
        is_fitted_N: whether a row is in the statistics of the other folds.
        is_judged_N: whether it is given a score.
        log_p_NK: log probabilities but for a constant, by a classifier that was not fitted to the row.
        of_unknown_NK: the same by one that was not fitted to the classes of the row's fold either. Of both,
            columns of left-out classes are not read.
    """

    features_ND: np.ndarray
    labels_N: np.ndarray
    fold_N: np.ndarray
    is_fitted_N: np.ndarray
    is_judged_N: np.ndarray
    log_p_NK: np.ndarray
    of_unknown_NK: np.ndarray


def left_out_classes(rows: LeftOutRows, fold_K: np.ndarray | None) -> UnlikeScore:
    """Return the candidate that tells images of left-out classes from others; the first unless one is better.

    Its weight is 1 or 0: `UnlikeScore.weighted` gives the one for the classifier that knows all classes.
    """
    scored = [] if fold_K is None else [_scored(rows, fold_K, fold) for fold in np.unique(fold_K)]
    folds = [fold for fold in scored if fold is not None]
    if not folds:
        return UnlikeScore(doubt_weight=1.0)
    # AUROC of each candidate in each fold; the weight is one for all folds.
    known_doubts_N = np.concatenate([known[1] for known, _ in folds])
    aurocs_SF = np.empty((len(CANDIDATES), len(folds)))
    for number, (shrinkage, has_doubt) in enumerate(CANDIDATES):
        which = SHRINKAGES.index(shrinkage)
        known_N = np.concatenate([known[0][which] for known, _ in folds])
        weight = _weight_for(known_N, known_doubts_N) if has_doubt else 0.0
        aurocs_SF[number] = [auroc(*(each[0][which] + weight * each[1] for each in fold)) for fold in folds]
    shrinkage, has_doubt = CANDIDATES[best := _best(aurocs_SF)]
    of_doubt = np.mean([auroc(known[1], unknown[1]) for known, unknown in folds])
    found = (round(float(value), DIGITS) for value in (aurocs_SF[best].mean(), of_doubt))
    return UnlikeScore(shrinkage, float(has_doubt), *found)


def _best(aurocs_SF: np.ndarray) -> int:
    """Return the best candidate if it beats the first by more than a standard error, else the first.

    The error is that of the mean difference over folds of classes.
    """
    best = int(aurocs_SF.mean(axis=1).round(DIGITS).argmax())
    gains_F = aurocs_SF[best] - aurocs_SF[0]
    if len(gains_F) < 2 or gains_F.mean() <= gains_F.std(ddof=1) / math.sqrt(len(gains_F)) + 1e-9:
        return 0
    return best


def _scored(rows: LeftOutRows, fold_K: np.ndarray, fold: int) -> tuple[tuple, tuple] | None:
    """Return distances at each shrinkage (S, N) and doubts (N,), of known rows and of the classes of a fold.

    None without two other classes, or without rows of either kind.
    """
    is_out_K = fold_K == fold
    is_unknown_N = is_out_K[rows.labels_N]
    is_fitted_N = rows.is_fitted_N & (rows.fold_N != fold) & ~is_unknown_N
    has_rows_K = np.bincount(rows.labels_N[is_fitted_N], minlength=len(fold_K)) > 0
    is_known_N = rows.is_judged_N & ~is_fitted_N & has_rows_K[rows.labels_N]
    is_unknown_N &= rows.is_judged_N
    if has_rows_K.sum() < LEAST_CLASSES - 1 or not (is_known_N.any() and is_unknown_N.any()):
        return None
    fitted = rows.features_ND[is_fitted_N], rows.labels_N[is_fitted_N]
    statistics = statistics_of(*fitted, num_classes=len(fold_K))
    if statistics is None:
        return None
    judged = ((is_known_N, rows.log_p_NK), (is_unknown_N, rows.of_unknown_NK))
    known, unknown = (
        (
            np.stack([statistics.distances(rows.features_ND[is_N], shrinkage=value) for value in SHRINKAGES]),
            doubts(Scaling().probabilities(log_p_NK[is_N][:, has_rows_K])),
        )
        for is_N, log_p_NK in judged
    )
    return known, unknown


def auroc(lower_N: np.ndarray, higher_N: np.ndarray) -> float:
    """Return how often a number of the second array is larger than one of the first; of equals half."""
    is_higher_N = np.repeat([False, True], [len(lower_N), len(higher_N)])
    return one_against_rest(np.append(lower_N, higher_N), is_higher_N)[0]


def _weight_for(distances_N: np.ndarray, doubts_N: np.ndarray) -> float:
    """Return the factor that gives doubts the standard deviation of distances; 0 if all doubts are equal."""
    return float(distances_N.std() / doubts_N.std()) if doubts_N.std() > 1e-9 else 0.0


def threshold_of(scores_N: np.ndarray) -> tuple[float, float] | None:
    """Return the score above which an image is unlike the training ones, and the fraction of others above.

    The fraction is FLAGGED, or 1 / (N + 1) of fewer images than 99; None of fewer than LEAST.
    """
    if len(scores_N) < LEAST:
        return None
    rank = max(1, math.floor((len(scores_N) + 1) * FLAGGED + 1e-9))
    return float(np.sort(scores_N)[-rank]), max(FLAGGED, 1 / (len(scores_N) + 1))


def _shrunk(covariance_DD: np.ndarray, shrinkage: float) -> np.ndarray:
    width = len(covariance_DD)
    return (1 - shrinkage) * covariance_DD + shrinkage * np.trace(covariance_DD) / width * np.eye(width)
