"""Statistics of predictions: calibration, intervals of accuracies, McNemar's test. NumPy only, no torch.

Calibration is Guo et al., "On Calibration of Modern Neural Networks" (arXiv 1706.04599), section 2.
Letters: N examples, M bins, R bootstrap resamples.
"""

import math
from dataclasses import dataclass

import numpy as np

NUM_BINS = 15  # as in Guo et al. and most published ECE values
NUM_RESAMPLES = 10_000
ENOUGH_TO_RESAMPLE = 50  # images from which an interval is the bootstrap's
SEED = 0
TAILS = (0.025, 0.975)  # of a 95 % interval
BINS = ("edges", "counts", "confidence", "accuracy")  # of a reliability diagram in a result


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy in each bin of confidence; both are 0 in an empty bin.

    Attributes:
        edges_M1: M + 1 bounds; a bin holds the examples with lower < confidence <= upper.
        counts_M: number of examples.
        confidence_M: their mean probability of the predicted class.
        accuracy_M: fraction of them that is right.
    """

    edges_M1: np.ndarray
    counts_M: np.ndarray
    confidence_M: np.ndarray
    accuracy_M: np.ndarray

    @property
    def ece(self) -> float:
        """Return the expected calibration error: sum over bins of counts / N * |confidence - accuracy|."""
        gaps_M = np.abs(self.confidence_M - self.accuracy_M)
        return float((self.counts_M * gaps_M).sum() / self.counts_M.sum())

    @classmethod
    def of_json(cls, bins: dict[str, list]) -> "Reliability":
        """Return the bins of a result, see `as_json`."""
        return cls(*(np.array(bins[key]) for key in BINS))

    def as_json(self) -> dict[str, list]:
        """Return the bins as a result has them."""
        return {key: values_M.tolist() for key, values_M in zip(BINS, vars(self).values(), strict=True)}


def reliability(
    confidences_N: np.ndarray, is_right_N: np.ndarray, *, num_bins: int = NUM_BINS
) -> Reliability:
    """Bin predictions by the probability of the predicted class, in bins of equal width."""
    edges_M1 = np.linspace(0.0, 1.0, num_bins + 1)
    bins_N = np.clip(np.searchsorted(edges_M1, confidences_N, side="left") - 1, 0, num_bins - 1)
    counts_M = np.bincount(bins_N, minlength=num_bins)
    per_example_M = np.maximum(counts_M, 1)
    return Reliability(
        edges_M1=edges_M1,
        counts_M=counts_M,
        confidence_M=np.bincount(bins_N, weights=confidences_N, minlength=num_bins) / per_example_M,
        accuracy_M=np.bincount(bins_N, weights=is_right_N, minlength=num_bins) / per_example_M,
    )


def accuracy_interval(num_right: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy `num_right` / `num_examples`.

    It is the percentile bootstrap's for many images. Few of them resample to accuracies that cannot be, such
    as 0 % although one is right; there, and where all or none are right, it is the exact (Clopper-Pearson)
    one.
    """
    if num_examples < ENOUGH_TO_RESAMPLE or num_right in (0, num_examples):
        highest_error = _highest_rate(num_examples - num_right, num_examples)
        return 1 - highest_error, _highest_rate(num_right, num_examples)
    draws_R = np.random.default_rng(seed).binomial(num_examples, num_right / num_examples, NUM_RESAMPLES)
    low, high = np.quantile(draws_R / num_examples, TAILS)
    return float(low), float(high)


def _highest_rate(num_hits: int, num_examples: int) -> float:
    """Return the rate p at which so few hits have a probability of 2.5 %, found by halving; 1 if all hit."""
    low, high = num_hits / num_examples, 1.0
    for _ in range(60 if num_hits < num_examples else 0):
        p = (low + high) / 2
        terms = (
            math.comb(num_examples, hits) * p**hits * (1 - p) ** (num_examples - hits)
            for hits in range(num_hits + 1)
        )
        low, high = (p, high) if sum(terms) > TAILS[0] else (low, p)
    return high


def interval_of(accuracy: float, num_examples: int) -> list[float]:
    """Return the 95 % interval of an accuracy, as JSON has it; of a mean of runs, that of one so accurate."""
    return list(accuracy_interval(round(accuracy * num_examples), num_examples))


def paired_interval(only_a: int, only_b: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of accuracy(B) - accuracy(A) on the same examples.

    Args:
        only_a, only_b: examples that only A, or only B, has right; the others add nothing to the difference.
    """
    agreeing = num_examples - only_a - only_b
    fractions = np.array([only_a, only_b, agreeing]) / num_examples
    draws_R3 = np.random.default_rng(seed).multinomial(num_examples, fractions, NUM_RESAMPLES)
    low, high = np.quantile((draws_R3[:, 1] - draws_R3[:, 0]) / num_examples, TAILS)
    return float(low), float(high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p-value of the exact McNemar test: the discordant examples as fair coin tosses.

        p = 2 * sum_{k=0..m} C(n, k) / 2^n,  n = only_a + only_b,  m = min(only_a, only_b)

    Summed from the largest term, k = m, down, each term relative to it, so that no factorial overflows and
    no small term is lost.
    """
    n, m = only_a + only_b, min(only_a, only_b)
    log_choices = math.lgamma(n + 1) - math.lgamma(m + 1) - math.lgamma(n - m + 1)
    largest = math.exp(log_choices - n * math.log(2))
    term = total = 1.0
    for k in range(m, 0, -1):
        term *= k / (n - k + 1)
        total += term
    return 1.0 if only_a == only_b else min(1.0, 2 * largest * total)
