"""Features of a split after every layer of a network, kept in the cache, and what is made of them.

A combination is a pooling of one layer's tokens, or all layers fused:

    token  the class token
    mean   the mean of the patches
    both   these two
    head   the input of the network's own head, where that is something else
    fused  token and mean of all layers, or of every second, third, ... from the last down

N rows, D features.
"""

from dataclasses import dataclass

import numpy as np

from vitcli.data.split import Split
from vitcli.features.extract import FeatureExtractor, extract
from vitcli.features.feature_store import FeatureStore, open_cached
from vitcli.models.blocks import HEAD, MEAN, TOKEN, LayerLayout

BOTH, FUSED = "both", "fused"
MOST_FUSED = 6144  # features: the closed form takes time with their cube
ROWS_AT_ONCE = 256
SEED = 0


@dataclass(frozen=True)
class Combination:
    """A pooling of layers, by their numbers from 1; (0,) for a network whose layers are not read."""

    pooling: str
    layers: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Return the last layer that has to be computed."""
        return self.layers[-1]


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features of rows of a split, on disk.

    Attributes:
        rows_N: those that could be decoded, ascending.
        num_cached, num_computed, skipped: as in `ExtractedFeatures`.
    """

    layout: LayerLayout
    store: FeatureStore
    rows_N: np.ndarray
    num_cached: int
    num_computed: int
    skipped: list[str]

    def read(self, combination: Combination) -> np.ndarray:
        """Return the features of a combination, (N, D) float32."""
        slices, pooling = self.layout.slices, combination.pooling
        of_pooling = (TOKEN, MEAN) if pooling in (BOTH, FUSED) else (pooling,)
        names = [(name, layer) for layer in combination.layers for name in of_pooling]
        columns = np.concatenate([np.r_[slices[name]] for name in names if name in slices])
        features_ND = np.empty((len(self.rows_N), len(columns)), dtype=np.float32)
        for first in range(0, len(self.rows_N), ROWS_AT_ONCE):
            rows = self.rows_N[first : first + ROWS_AT_ONCE]
            features_ND[first : first + len(rows)] = self.store.read(rows)["features"][:, columns]
        return features_ND


def combinations(layout: LayerLayout) -> list[Combination]:
    """Return all that a layout allows, layer after layer."""
    poolings: dict[int, list[str]] = {layer: [] for layer in layout.layers}
    for name, layer, _ in layout.parts:
        poolings[layer].append(name)
    made = []
    for layer, names in poolings.items():
        names = [*names, *([BOTH] if {TOKEN, MEAN} <= set(names) else [])]
        made += [Combination(name, (layer,)) for name in sorted(names, key=(TOKEN, MEAN, BOTH, HEAD).index)]
    if len(layout.layers) > 1:
        made.append(Combination(FUSED, _fused(layout)))
    return made


def _fused(layout: LayerLayout) -> tuple[int, ...]:
    """Return the layers to fuse: all, or every second, third, ... for MOST_FUSED features at most."""
    size = sum(size for name, layer, size in layout.parts if layer == layout.layers[0] and name != HEAD)
    every = -(-len(layout.layers) * size // MOST_FUSED)
    return layout.layers[::-1][::every][::-1]


def extract_layers(extractor: FeatureExtractor, split: Split, rows_N: np.ndarray) -> LayerFeatures | None:
    """Compute the features that the cache lacks, in one pass; None on all processes but the first.

    Args:
        rows_N: ascending.
    """
    done = extract(extractor, split, rows_N, open_cached, with_logits=False)
    if not done.store:
        return None
    rows_N = rows_N[done.store.has(rows_N)]
    return LayerFeatures(
        extractor.layout, done.store, rows_N, done.num_cached, done.num_computed, sorted({*done.skipped})
    )


def sampled_rows(num_rows: int, most: int) -> np.ndarray:
    """Return all rows, or `most` of them drawn at random, ascending."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, most, replace=False))
