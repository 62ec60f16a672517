"""Which rows a step sees, and every random draw's seed: pure functions of (seed, step), in O(1) memory.

A run is one endless stream of positions: step s of batch size B sees positions s*B ... s*B + B - 1, and
position p is row `permutation_of_epoch(p // n)[p % n]` of a split of n rows. Nothing is dropped at the end
of an epoch, and nothing is remembered between steps: to resume at step s is to ask for step s.
"""

from hashlib import blake2b

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
