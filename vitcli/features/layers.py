"""Features of a split after every layer of a network, kept in the cache, and what is made of them.

A combination is a pooling of one layer's tokens, or all layers fused:

    token      the class token
    mean       the mean of the patches
    both       these two
    head       the input of the network's own head, where that is something else
    attentive  the tokens weighted by learnt queries, see `attentive`; of the last layer
    fused      token and mean of all layers, or of every second, third, ... from the last down

N rows, M of them with tokens, T tokens, D hidden width.
"""

from dataclasses import dataclass, replace

import numpy as np

from vitcli.data.split import Split
from vitcli.features.extract import FeatureExtractor, extract
from vitcli.features.feature_store import FeatureStore, open_cached
from vitcli.models.blocks import HEAD, MEAN, TOKEN, LayerLayout

BOTH, ATTENTIVE, FUSED = "both", "attentive", "fused"
MOST_FUSED = 6144  # features: the closed form takes time with their cube
MOST_TOKEN_BYTES = 2**30  # of the tokens that queries are learnt from
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
        stores: each row is in one of them; of the first with the tokens of the last layer.
        rows_N: those that could be decoded, ascending.
        has_tokens_N: whether the tokens of a row are kept.
        num_cached, num_computed, skipped: as in `ExtractedFeatures`.
    """

    layout: LayerLayout
    stores: tuple[FeatureStore, ...]
    rows_N: np.ndarray
    has_tokens_N: np.ndarray
    num_cached: int
    num_computed: int
    skipped: list[str]

    def read(self, combination: Combination) -> np.ndarray:
        """Return the features of a combination without learnt queries, (N, D') float32."""
        slices = self.layout.slices
        of_pooling = {BOTH: (TOKEN, MEAN), FUSED: (TOKEN, MEAN)}.get(
            combination.pooling, (combination.pooling,)
        )
        names = [(name, layer) for layer in combination.layers for name in of_pooling]
        columns = np.concatenate([np.r_[slices[name]] for name in names if name in slices])
        features_ND = np.empty((len(self.rows_N), len(columns)), dtype=np.float32)
        for store, places in self._parts(np.arange(len(self.rows_N))):
            features_ND[places] = store.read(self.rows_N[places])["features"][:, columns]
        return features_ND

    def read_tokens(self) -> np.ndarray:
        """Return the tokens of the last layer of the rows that have them, (M, T, D) float32."""
        width = self.layout.width
        with_tokens = np.flatnonzero(self.has_tokens_N)
        tokens_MX = np.empty((len(with_tokens), int(np.prod(self.layout.tokens))), dtype=np.float32)
        for part in range(0, len(with_tokens), ROWS_AT_ONCE):
            places = with_tokens[part : part + ROWS_AT_ONCE]
            records = self.stores[0].read(self.rows_N[places])["features"]
            tokens_MX[part : part + len(places)] = records[:, width:]
        return tokens_MX.reshape(-1, *self.layout.tokens)

    def _parts(self, places_N: np.ndarray) -> list[tuple[FeatureStore, np.ndarray]]:
        """Return few rows at once with the store that has them."""
        parts = []
        for store, is_here in zip(self.stores, (self.has_tokens_N, ~self.has_tokens_N), strict=False):
            here = places_N[is_here[places_N]] if len(self.stores) > 1 else places_N
            parts += [(store, here[i : i + ROWS_AT_ONCE]) for i in range(0, len(here), ROWS_AT_ONCE)]
        return parts

    def close(self) -> None:
        for store in self.stores:
            store.close()


def combinations(layout: LayerLayout) -> list[Combination]:
    """Return all that a layout allows, layer after layer."""
    poolings: dict[int, list[str]] = {layer: [] for layer in layout.layers}
    for name, layer, _ in layout.parts:
        poolings[layer].append(name)
    made = []
    for layer, names in poolings.items():
        names = [*names, *([BOTH] if {TOKEN, MEAN} <= set(names) else [])]
        made += [Combination(name, (layer,)) for name in sorted(names, key=(TOKEN, MEAN, BOTH, HEAD).index)]
    if layout.tokens[0]:
        made.append(Combination(ATTENTIVE, layout.layers[-1:]))
    if len(layout.layers) > 1:
        made.append(Combination(FUSED, _fused(layout)))
    return made


def _fused(layout: LayerLayout) -> tuple[int, ...]:
    """Return the layers to fuse: all, or every second, third, ... for MOST_FUSED features at most."""
    size = sum(size for name, layer, size in layout.parts if layer == layout.layers[0] and name != HEAD)
    every = -(-len(layout.layers) * size // MOST_FUSED)
    return layout.layers[::-1][::every][::-1]


def extract_layers(
    extractor: FeatureExtractor, split: Split, rows_N: np.ndarray, *, most_token_bytes: int = MOST_TOKEN_BYTES
) -> LayerFeatures | None:
    """Compute the features that the cache lacks, in one pass; None on all processes but the first.

    Args:
        rows_N: ascending.
        most_token_bytes: rows are drawn at random where the tokens of all take more.
    """
    layout = extractor.layout
    most = most_token_bytes // (4 * int(np.prod(layout.tokens))) if layout.tokens[0] else 0
    chosen_M = rows_N
    if len(rows_N) > most:
        chosen_M = np.sort(np.random.default_rng(SEED).choice(rows_N, most, replace=False))
    parts = [(replace(extractor, with_tokens=True), chosen_M), (extractor, np.setdiff1d(rows_N, chosen_M))]
    parts = [(reader, rows) for reader, rows in parts if len(rows)]
    done, opened = [], []
    try:
        for reader, rows in parts:
            done.append(extract(reader, split, rows, open_cached, with_logits=False))
            opened += [done[-1].store] if done[-1].store else []
    except BaseException:
        for store in opened:
            store.close()
        raise
    if not opened:
        return None
    stored = [rows[part.store.has(rows)] for (_, rows), part in zip(parts, done, strict=True)]
    kept_N = np.sort(np.concatenate(stored))
    return LayerFeatures(
        layout,
        tuple(opened),
        kept_N,
        np.isin(kept_N, chosen_M),
        sum(part.num_cached for part in done),
        sum(part.num_computed for part in done),
        sorted({place for part in done for place in part.skipped}),
    )


def sampled_rows(num_rows: int, most: int) -> np.ndarray:
    """Return all rows, or `most` of them drawn at random, ascending."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, most, replace=False))
