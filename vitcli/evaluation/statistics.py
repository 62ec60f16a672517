"""Whether a network is right as often as it says: confidence against accuracy, in bins.

Guo et al., "On Calibration of Modern Neural Networks" (arXiv 1706.04599), section 2.
Letters: N examples, M bins.
"""

import math
from dataclasses import dataclass

import numpy as np

NUM_BINS = 15  # Guo et al.'s, and what published numbers mean by ECE


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy of the examples of each bin; both are 0 where a bin is empty.

    Attributes:
        edges_M1: M + 1 bounds; an example belongs to the bin with lower < confidence <= upper.
        counts_M: examples of each bin.
        confidence_M: their mean probability of the predicted class.
        accuracy_M: the share of them that is right.
    """

    edges_M1: np.ndarray
    counts_M: np.ndarray
    confidence_M: np.ndarray
    accuracy_M: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: the gap between the two, averaged over all examples."""
        gaps_M = np.abs(self.confidence_M - self.accuracy_M)
        return float((self.counts_M * gaps_M).sum() / self.counts_M.sum())


def reliability(
    confidences_N: np.ndarray, is_right_N: np.ndarray, *, num_bins: int = NUM_BINS
) -> Reliability:
    """Equal-width bins of the probabilities that were given to the predicted classes."""
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


NUM_RESAMPLES = 10_000
SEED = 0
TAILS = (0.025, 0.975)  # of a 95 % interval


def accuracy_interval(num_right: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the share `num_right` of `num_examples`.

    It has no width where all or none are right: the bootstrap cannot know what the sample does not show.
    """
    draws_R = np.random.default_rng(seed).binomial(num_examples, num_right / num_examples, NUM_RESAMPLES)
    low, high = np.quantile(draws_R / num_examples, TAILS)
    return float(low), float(high)


def paired_interval(only_a: int, only_b: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """95 % bootstrap interval of share(B right) - share(A right), both seen on the same examples.

    Args:
        only_a, only_b: examples that only A, or only B, has right; those on which they agree add nothing.
    """
    rest = num_examples - only_a - only_b
    chances = np.array([only_a, only_b, rest]) / num_examples
    draws_R3 = np.random.default_rng(seed).multinomial(num_examples, chances, NUM_RESAMPLES)
    low, high = np.quantile((draws_R3[:, 1] - draws_R3[:, 0]) / num_examples, TAILS)
    return float(low), float(high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the exact McNemar test: are A's and B's lone hits tosses of a fair coin?

    Summed from the largest term of the tail down, each a multiple of the one before, so that neither many
    tosses nor a thin tail are out of reach.
    """
    tosses, fewer = only_a + only_b, min(only_a, only_b)
    log_choices = math.lgamma(tosses + 1) - math.lgamma(fewer + 1) - math.lgamma(tosses - fewer + 1)
    largest = math.exp(log_choices - tosses * math.log(2))
    term = total = 1.0
    for k in range(fewer, 0, -1):
        term *= k / (tosses - k + 1)
        total += term
    return 1.0 if only_a == only_b else min(1.0, 2 * largest * total)
