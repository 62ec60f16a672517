"""The rows of every training step, and the seed of every random draw: pure functions of (seed, step).

A run is one endless stream of positions: step s of batch size B sees positions s*B ... s*B + B - 1, and each
process a contiguous part of them. The row at a position is

- in a table, where any row is as near as any other: `permutation_of_epoch(p // n)[p % n]`, a shuffle of all;
- in a table whose classes are drawn in other proportions than they have: see `ClassOrder`;
- in shards, where neighbouring rows are read together: the blocks shuffled, and rows within windows of them.

Nothing is dropped at the end of an epoch and nothing is remembered between steps: to resume at step s is to
ask for step s. No order takes memory that grows with the rows, but for that of classes.

Letters: N positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from math import gcd

import numpy as np

from vitcli.data.balance import class_weights

ROUNDS = 8  # of the Feistel network; 4 are provably enough for large domains, small ones need more
ROWS_PER_TASK = 64  # of a thread that goes through all rows of a split
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of splitmix64's state
LANES = 64  # parts of a streamed step that draw from parts of a window of their own


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """Return a 64-bit seed for one purpose and its counters, so that no two streams of draws are related."""
    text = f"{seed}/{purpose}/" + "/".join(map(str, counters))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_of_part(seed: int, step: int, part: int) -> int:
    """Return the seed of dropout and mixup in a micro-batch, by its number in the step of all processes."""
    return derive_seed(seed, "model", step, part)


@dataclass(frozen=True)
class TrainSampler:
    """The rows that one process loads at each step of a training run.

    Attributes:
        block_starts: `Split.block_starts` of streamed shards, None for tables.
        window: rows of shards that are shuffled among each other; tables are shuffled as a whole.
        batch_size: images per optimizer step, over all processes.
        rank, world_size: this process and the number of processes.
        by_class: order of a table whose classes are drawn in other proportions; None for a shuffle of all.
    """

    num_examples: int
    block_starts: np.ndarray | None
    window: int
    batch_size: int
    seed: int
    rank: int
    world_size: int
    by_class: "ClassOrder | None" = None

    def rows_of_step(self, step: int) -> list[tuple[int, int]]:
        """Return the row and the position in the run of every example of this process at `step`, in order."""
        positions = step_positions(
            step, batch_size=self.batch_size, rank=self.rank, world_size=self.world_size
        )
        return list(zip(self._rows_at(positions).tolist(), positions, strict=True))

    @cached_property
    def _rows_at(self) -> Callable[[range], np.ndarray]:
        if self.by_class is not None:
            return self.by_class.rows_at
        if self.block_starts is None:
            return partial(rows_at, num_examples=self.num_examples, seed=self.seed)
        return StreamOrder(
            self.block_starts, window=self.window, batch_size=self.batch_size, seed=self.seed
        ).rows_at


def step_positions(step: int, *, batch_size: int, rank: int, world_size: int) -> range:
    """Return the positions of the run that `rank` sees at `step`; all ranks in order make up the step."""
    per_rank = batch_size // world_size
    first = step * batch_size + rank * per_rank
    return range(first, first + per_rank)


def rows_at(positions: range, *, num_examples: int, seed: int) -> np.ndarray:
    """Return the row of a table at each position of the run, (N,) int64."""

    def rows_of(epoch: int, places_N: np.ndarray) -> np.ndarray:
        return permute(places_N, num_examples=num_examples, key=derive_seed(seed, "order", epoch))

    epochs_N, places_N = np.divmod(np.arange(positions.start, positions.stop, dtype=np.int64), num_examples)
    return _by_group(epochs_N, places_N, rows_of)


class ClassOrder:
    """The order of a run in which classes of different sizes are drawn in chosen proportions.

    A class with n rows gets a fraction of every epoch that is proportional to n times its weight in
    `balance.class_weights`: with "balanced" every class the same, with "sqrt" the root of its size. After
    any number of epochs a class has been drawn as often as that, but for a fraction of one row, and all its
    rows equally often, but for one: it goes through shuffles of its rows, one after the other. Within an
    epoch the draws of all classes are shuffled.

    Args:
        labels_N: class of each row.
        sampling: a key of `balance.POWERS`.
    """

    def __init__(self, labels_N: np.ndarray, *, sampling: str, seed: int):
        self.num_examples, self.seed = len(labels_N), seed
        self.rows_N = np.argsort(labels_N, kind="stable")  # those of each class together
        _, self.starts_K, self.counts_K = np.unique(
            labels_N[self.rows_N], return_index=True, return_counts=True
        )
        drawn_K = self.counts_K * class_weights(self.counts_K, sampling)
        ends_K = np.cumsum(drawn_K)
        self.bounds = np.concatenate([[0.0], ends_K / ends_K[-1]])  # of the classes, as fractions of an epoch
        self._shuffled = lru_cache(maxsize=2 * len(self.counts_K))(self._shuffled_class)

    def rows_at(self, positions: range) -> np.ndarray:
        """Return the row of the table at each position of the run, (N,) int64."""
        positions_N = np.arange(positions.start, positions.stop, dtype=np.int64)
        epochs_N, places_N = np.divmod(positions_N, self.num_examples)
        return _by_group(epochs_N, places_N, self._rows_of_epoch)

    def _rows_of_epoch(self, epoch: int, places_N: np.ndarray) -> np.ndarray:
        key = derive_seed(self.seed, "order", epoch)
        places_N = permute(places_N, num_examples=self.num_examples, key=key)
        # The class of each place, and how many rows of the class the run has drawn before it.
        before_K = self._num_drawn(epoch)
        ends_K = np.cumsum(self._num_drawn(epoch + 1) - before_K)
        classes_N = np.searchsorted(ends_K, places_N, side="right")
        starts_K = np.concatenate([[0], ends_K[:-1]])
        draws_N = before_K[classes_N] + places_N - starts_K[classes_N]
        # Each pass of a class through its rows is a shuffle of its own.
        passes_N, within_N = np.divmod(draws_N, self.counts_K[classes_N])
        rows_N = np.empty_like(places_N)
        for number, of_pass in set(zip(classes_N.tolist(), passes_N.tolist(), strict=True)):
            here = (classes_N == number) & (passes_N == of_pass)
            rows_N[here] = self._shuffled(number, of_pass)[within_N[here]]
        return rows_N

    def _num_drawn(self, num_epochs: int) -> np.ndarray:
        """Return how many rows of each class (K,) the first epochs draw; together, all their positions."""
        # A bound that is whole but for its rounding error is that whole number.
        ends = np.floor(self.bounds * (num_epochs * self.num_examples) + 1e-6)
        return np.diff(ends).astype(np.int64)

    def _shuffled_class(self, number: int, of_pass: int) -> np.ndarray:
        """Return the rows of a class in the order of one pass through them."""
        start, count = self.starts_K[number], self.counts_K[number]
        key = np.uint64(derive_seed(self.seed, "class", number, of_pass))
        # Sorted by numbers of splitmix64: for a whole class of the usual size far faster than `permute`.
        order = np.argsort(_mix(np.arange(count, dtype=np.uint64) * GOLDEN + key), kind="stable")
        return self.rows_N[start : start + count][order]


def row_ranges(num_rows: int, size: int, *, rank: int = 0, world_size: int = 1) -> Iterator[range]:
    """Yield every `world_size`-th of the ranges of `size` rows, in order; the last may be short."""
    for first in range(rank * size, num_rows, world_size * size):
        yield range(first, min(first + size, num_rows))


class StreamOrder:
    """The order of a run over shards: shuffled, and yet close together, so that each block is read once.

    The blocks (row groups, shards) of an epoch are put in a random order; this sequence of rows is cut into
    windows, and rows are permuted within a window. Each of `LANES` parts of a step draws from its own part of
    the window, so that each of P processes touches about 1/P of the blocks while the order is the same for
    any P. There is no shuffle buffer and no reader's state to save.

    Args:
        block_starts: first row of each block, and at the end the number of rows.
        window: rows that are shuffled among each other, rounded up to whole batches.
        batch_size: images per step.
    """

    def __init__(self, block_starts: np.ndarray, *, window: int, batch_size: int, seed: int):
        self.starts = np.asarray(block_starts, dtype=np.int64)
        self.num_examples = int(self.starts[-1])
        self.window = -(-window // batch_size) * batch_size
        self.batch_size, self.seed = batch_size, seed
        self.lanes = gcd(LANES, batch_size)
        self._blocks_of = lru_cache(maxsize=2)(self._shuffled_blocks)

    def rows_at(self, positions: range) -> np.ndarray:
        """Return the row of the shards at each position of the run, (N,) int64."""
        positions_N = np.arange(positions.start, positions.stop, dtype=np.int64)
        epochs_N, places_N = np.divmod(positions_N, self.num_examples)
        return _by_group(epochs_N, places_N, self._rows_of_epoch)

    def _rows_of_epoch(self, epoch: int, places_N: np.ndarray) -> np.ndarray:
        windows_N, offsets_N = np.divmod(places_N, self.window)
        shuffled_N = windows_N * self.window
        shuffled_N += _by_group(windows_N, offsets_N, partial(self._within_window, epoch))
        # The block that holds each place in the epoch's order of blocks, and the row inside it.
        blocks, ends = self._blocks_of(epoch)
        block_N = np.searchsorted(ends, shuffled_N, side="right")
        sizes = np.diff(self.starts)[blocks]
        return self.starts[blocks[block_N]] + shuffled_N - (ends - sizes)[block_N]

    def _shuffled_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch's order of blocks, and the place at which each of them ends."""
        num_blocks = len(self.starts) - 1
        key = derive_seed(self.seed, "blocks", epoch)
        blocks = permute(np.arange(num_blocks), num_examples=num_blocks, key=key)
        return blocks, np.cumsum(np.diff(self.starts)[blocks])

    def _within_window(self, epoch: int, window: int, places_N: np.ndarray) -> np.ndarray:
        """Permute places of one window; lane k of each of its steps stays in the k-th part of the window."""
        length = min(self.window, self.num_examples - window * self.window)
        lanes = self.lanes if length == self.window else 1  # the last window of an epoch is of any length
        per_step, lane_length = self.batch_size // lanes, length // lanes
        steps_N, in_step_N = np.divmod(places_N, self.batch_size)
        lanes_N, in_lane_N = np.divmod(in_step_N, per_step)
        in_lane_N += steps_N * per_step

        def within_lane(lane: int, places_N: np.ndarray) -> np.ndarray:
            key = derive_seed(self.seed, "window", epoch, window, lane)
            return lane * lane_length + permute(places_N, num_examples=lane_length, key=key)

        return _by_group(lanes_N, in_lane_N, within_lane)


def _by_group(
    groups_N: np.ndarray, places_N: np.ndarray, permuted: Callable[[int, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Permute the places of each group by a function of the group and its places, (N,) int64."""
    result_N = np.empty_like(places_N)
    for group in np.unique(groups_N):
        here = groups_N == group
        result_N[here] = permuted(int(group), places_N[here])
    return result_N


def permute(places_N: np.ndarray, *, num_examples: int, key: int) -> np.ndarray:
    """Apply the pseudo-random permutation of 0 ... num_examples - 1 that `key` selects.

    A Feistel network permutes the next power of four; places that land outside are sent through again
    (cycle walking), at most four times on average. So a shuffle of 3e8 rows costs no memory.
    """
    half_bits = max(1, ((num_examples - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    round_keys = [np.uint64(derive_seed(key, "feistel", number)) for number in range(ROUNDS)]

    permuted_N = places_N.astype(np.uint64)
    outside_N = np.ones(len(permuted_N), dtype=bool)
    while outside_N.any():
        left, right = permuted_N[outside_N] >> shift, permuted_N[outside_N] & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        permuted_N[outside_N] = (left << shift) | right
        outside_N = permuted_N >= num_examples
    return permuted_N.astype(np.int64)


def _mix(words_N: np.ndarray) -> np.ndarray:
    """Mix the bits of each word with the finaliser of splitmix64, which wraps around on purpose."""
    words_N = (words_N ^ (words_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words_N = (words_N ^ (words_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words_N ^ (words_N >> np.uint64(31))
