"""Which rows a step of a streamed run sees: shuffled, yet close together, so that a block is read once.

As with `order`, position p of the run is place p % n of epoch p // n, and its row a pure function of that: no
buffer, no reader's state, nothing to save. The blocks (row groups, shards) of an epoch are put in a random
order; this row of rows is cut into windows, and within a window rows are permuted. A step's images come from
one window. Each of `LANES` parts of a step draws from its own part of the window, so that of P processes each
touches about 1/P of the blocks, and yet the order is the same on any number of them.
"""

from functools import lru_cache
from math import gcd

import numpy as np

from vitcli.data.sampler import derive_seed, permute

LANES = 64


class StreamOrder:
    """The order of a run over a split of blocks.

    Args:
        block_starts: first row of each block, and at the end the number of rows.
        window: rows that are shuffled among each other, rounded up to whole batches.
        batch_size: images a step.
    """

    def __init__(self, block_starts: np.ndarray, *, window: int, batch_size: int, seed: int):
        self.starts = np.asarray(block_starts, dtype=np.int64)
        self.num_examples = int(self.starts[-1])
        self.window = -(-window // batch_size) * batch_size
        self.batch_size, self.seed = batch_size, seed
        self.lanes = gcd(LANES, batch_size)
        self._blocks_of = lru_cache(maxsize=2)(self._shuffled_blocks)

    def rows_at(self, positions: range) -> np.ndarray:
        """Row of each position of the run, (len(positions),) int64."""
        positions_N = np.arange(positions.start, positions.stop, dtype=np.int64)
        epochs_N, places_N = np.divmod(positions_N, self.num_examples)
        rows_N = np.empty_like(places_N)
        for epoch in np.unique(epochs_N):
            here = epochs_N == epoch
            shuffled_N = self._within_windows(int(epoch), places_N[here])
            blocks, ends = self._blocks_of(int(epoch))
            which_N = np.searchsorted(ends, shuffled_N, side="right")
            sizes = np.diff(self.starts)[blocks]
            rows_N[here] = self.starts[blocks[which_N]] + shuffled_N - (ends - sizes)[which_N]
        return rows_N

    def _shuffled_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's order of blocks, and the place at which each of them ends."""
        num_blocks = len(self.starts) - 1
        key = derive_seed(self.seed, "blocks", epoch)
        blocks = permute(np.arange(num_blocks), num_examples=num_blocks, key=key)
        return blocks, np.cumsum(np.diff(self.starts)[blocks])

    def _within_windows(self, epoch: int, places_N: np.ndarray) -> np.ndarray:
        """Each place's image under the permutation of its window, lane by lane."""
        shuffled_N = np.empty_like(places_N)
        windows_N = places_N // self.window
        for window in np.unique(windows_N):
            here = windows_N == window
            first = int(window) * self.window
            length = min(self.window, self.num_examples - first)
            inside_N = places_N[here] - first
            shuffled_N[here] = first + self._within_one(epoch, int(window), length, inside_N)
        return shuffled_N

    def _within_one(self, epoch: int, window: int, length: int, places_N: np.ndarray) -> np.ndarray:
        lanes = self.lanes if length == self.window else 1  # the last window of an epoch is of any length
        share, lane_length = self.batch_size // lanes, length // lanes
        steps_N, in_step_N = np.divmod(places_N, self.batch_size if lanes > 1 else length)
        lanes_N, in_lane_N = np.divmod(in_step_N, share if lanes > 1 else length)
        in_lane_N = in_lane_N + steps_N * share if lanes > 1 else in_lane_N
        shuffled_N = np.empty_like(places_N)
        for lane in np.unique(lanes_N):
            here = lanes_N == lane
            key = derive_seed(self.seed, "window", epoch, window, int(lane))
            images_N = permute(in_lane_N[here], num_examples=lane_length, key=key)
            shuffled_N[here] = lane * lane_length + images_N
        return shuffled_N
