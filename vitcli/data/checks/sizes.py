"""Sizes of the images of a split: short sides, aspect ratios, and images that cost time.

N images.
"""

from typing import Any

import numpy as np

from vitcli.data.parts.image_hashes import ImageHashes
from vitcli.data.split import Split

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
LARGE_PIXELS = 25_000_000  # above it one image takes about half a second to decode; 89 million are refused
SMALL_SIDE = 32  # pixels; two patches of 16
LONG_ASPECT = 3.0  # above it a centre crop of the short side shows less than a third of the image


def describe(split: Split, hashes: ImageHashes) -> dict[str, Any]:
    """Return quantiles of short side and aspect ratio (width / height), and the places of odd images."""
    height_N, width_N = hashes.sides_N2.T
    short_N, long_N = np.minimum(height_N, width_N), np.maximum(height_N, width_N)
    odd = {
        "large": height_N * width_N > LARGE_PIXELS,
        "small": short_N < SMALL_SIDE,
        "long": long_N > LONG_ASPECT * short_N,
    }
    places = {
        name: [
            f"{split.where_is(int(hashes.rows_N[i]))}: {width_N[i]}x{height_N[i]}"
            for i in np.flatnonzero(is_odd_N)
        ]
        for name, is_odd_N in odd.items()
    }
    if not len(short_N):
        return {"short_side": None, "aspect": None, **places}
    return {
        "short_side": _quantiles(short_N, digits=0),
        "aspect": _quantiles(width_N / height_N, digits=3),
        **places,
    }


def _quantiles(values_N: np.ndarray, *, digits: int) -> dict[str, float]:
    """Return the values at QUANTILES, each that of an image: the nearest rank below."""
    values = np.quantile(values_N, QUANTILES, method="inverted_cdf").tolist()
    names = ("min", "p5", "median", "p95", "max")
    return {name: round(value, digits) for name, value in zip(names, values, strict=True)}
