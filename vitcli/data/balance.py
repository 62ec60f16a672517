"""Weights of classes of different sizes, for losses, for least squares and for drawing rows.

A class with n images has the weight n^-p, so that all classes together have the weight n^(1-p) each:

    p = 0      each image counts the same: the paper's, and every default
    p = 1/2    a class counts by the root of its size
    p = 1      each class counts the same, whatever its size

Letters: K classes.
"""

import numpy as np

POWERS = {"none": 0.0, "uniform": 0.0, "sqrt": 0.5, "full": 1.0, "balanced": 1.0}


def class_weights(counts_K: np.ndarray, balance: str) -> np.ndarray:
    """Return the weight of an image of each class (K,), float64, of mean 1 over all images.

    A class without an image has the weight 0.

    Args:
        counts_K: number of images of each class; one at least is not 0.
        balance: a key of `POWERS`.
    """
    counts_K = np.asarray(counts_K, dtype=np.float64)
    weights_K = np.where(counts_K > 0, np.maximum(counts_K, 1) ** -POWERS[balance], 0.0)
    return weights_K * (counts_K.sum() / (counts_K @ weights_K))
