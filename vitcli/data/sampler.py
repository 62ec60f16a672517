"""Which rows a step sees, and every random draw's seed: pure functions of (seed, step), in O(1) memory.

A run is one endless stream of positions: step s of batch size B sees positions s*B ... s*B + B - 1, and
position p is row `permutation_of_epoch(p // n)[p % n]` of a split of n rows. Nothing is dropped at the end
of an epoch, and nothing is remembered between steps: to resume at step s is to ask for step s.
"""

from functools import lru_cache
from hashlib import blake2b
from math import gcd

import numpy as np

ROUNDS = 8  # of the Feistel network; 4 are provably enough for large domains, small ones need more


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """A 64-bit seed of its own for each purpose and counter, so that no two streams of draws are related."""
    text = f"{seed}/{purpose}/" + "/".join(map(str, counters))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def step_positions(step: int, *, batch_size: int, rank: int, world_size: int) -> range:
    """Positions in the run that `rank` sees at `step`: contiguous, so all shares in order are the step."""
    share = batch_size // world_size
    first = step * batch_size + rank * share
    return range(first, first + share)


def step_indices(
    step: int, *, num_examples: int, batch_size: int, seed: int, rank: int, world_size: int
) -> list[int]:
    """Rows of the split that `rank` sees at `step`, in order.

    Each epoch is a fresh permutation of all `num_examples` rows, the same for any number of processes.
    """
    positions = step_positions(step, batch_size=batch_size, rank=rank, world_size=world_size)
    return [int(row) for row in rows_at(positions, num_examples=num_examples, seed=seed)]


def rows_at(positions: range, *, num_examples: int, seed: int) -> np.ndarray:
    """Row of each position of the run, (len(positions),) int64."""
    positions_N = np.arange(positions.start, positions.stop, dtype=np.int64)
    epochs_N, places_N = np.divmod(positions_N, num_examples)
    rows_N = np.empty_like(places_N)
    for epoch in np.unique(epochs_N):
        here = epochs_N == epoch
        key = derive_seed(seed, "order", int(epoch))
        rows_N[here] = permute(places_N[here], num_examples=num_examples, key=key)
    return rows_N


def permute(places_N: np.ndarray, *, num_examples: int, key: int) -> np.ndarray:
    """Images of `places_N` under the pseudo-random permutation of 0 ... num_examples - 1 that `key` names.

    A Feistel network permutes the next power of four; places that land outside are sent through again
    (cycle walking), at most four times on average. So a shuffle of 3e8 rows costs no memory.
    """
    half_bits = max(1, ((num_examples - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    round_keys = [np.uint64(derive_seed(key, "feistel", number)) for number in range(ROUNDS)]

    images_N = places_N.astype(np.uint64)
    outside_N = np.ones(len(images_N), dtype=bool)
    while outside_N.any():
        left, right = images_N[outside_N] >> shift, images_N[outside_N] & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        images_N[outside_N] = (left << shift) | right
        outside_N = images_N >= num_examples
    return images_N.astype(np.int64)


def _mix(words_N: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every output bit depends on every input bit; wraps around on purpose."""
    words_N = (words_N ^ (words_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words_N = (words_N ^ (words_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words_N ^ (words_N >> np.uint64(31))


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
