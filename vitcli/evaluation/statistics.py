"""Whether a network is right as often as it says: confidence against accuracy, in bins.

Guo et al., "On Calibration of Modern Neural Networks" (arXiv 1706.04599), section 2.
Letters: N examples, M bins.
"""

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
