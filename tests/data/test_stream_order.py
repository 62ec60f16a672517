"""The order of a streamed run: every row once an epoch, whatever the blocks, and close together."""

import numpy as np
import pytest

from vitcli.data.sampler import StreamOrder


def blocks(*sizes: int) -> np.ndarray:
    return np.array([0, *np.cumsum(sizes)])


def ragged(num_rows: int, seed: int = 0) -> np.ndarray:
    """Blocks of 1 to 40 rows."""
    draws = np.random.default_rng(seed).integers(1, 41, num_rows)
    inside = np.cumsum(draws)
    return np.array([0, *inside[inside < num_rows], num_rows])


@pytest.mark.parametrize(
    ("starts", "window", "batch_size"),
    [
        (ragged(1003), 64, 16),
        (ragged(1003), 100, 16),
        (ragged(1003), 5000, 24),  # the window is longer than the epoch
        (ragged(7), 4, 2),
        (blocks(1), 8, 8),
        (blocks(300), 32, 32),
        (blocks(3, 0, 5, 0), 4, 4),  # empty blocks
        (ragged(999), 96, 7),  # one lane
    ],
)
def test_every_row_comes_once_in_every_epoch(starts, window, batch_size):
    order = StreamOrder(starts, window=window, batch_size=batch_size, seed=3)
    n = int(starts[-1])

    for epoch in range(3):
        rows = order.rows_at(range(epoch * n, (epoch + 1) * n))
        assert sorted(rows.tolist()) == list(range(n))


def test_the_row_of_a_position_does_not_depend_on_how_it_is_asked_for():
    order = StreamOrder(ragged(1003), window=64, batch_size=16, seed=1)
    at_once = order.rows_at(range(1500))
    for world_size in (1, 2, 4, 8, 16):
        share = 16 // world_size
        pieces = [
            order.rows_at(range(step * 16 + rank * share, step * 16 + (rank + 1) * share))
            for step in range(93)
            for rank in range(world_size)
        ]
        assert np.array_equal(np.concatenate(pieces), at_once[: 93 * 16])


def test_epochs_and_seeds_differ_and_neither_is_the_order_on_disk():
    n, starts = 1000, ragged(1000)
    first, second = (
        StreamOrder(starts, window=100, batch_size=10, seed=s).rows_at(range(2 * n)) for s in (0, 1)
    )

    assert not np.array_equal(first[:n], first[n:])
    assert not np.array_equal(first, second)
    assert np.abs(np.diff(first[:n])).mean() > 5


def test_a_step_looks_into_few_blocks_and_a_process_into_its_share_of_them():
    starts = blocks(*[100] * 400)  # 40,000 rows
    order = StreamOrder(starts, window=4096, batch_size=512, seed=0)
    window = order.rows_at(range(4096)) // 100
    halves = [
        {
            block
            for step in range(8)
            for block in window[step * 512 + rank * 256 : step * 512 + (rank + 1) * 256]
        }
        for rank in range(2)
    ]

    assert len(set(window)) <= 42  # 4,096 rows of blocks of 100
    assert all(len(half) <= 22 for half in halves) and len(halves[0] & halves[1]) <= 2


def test_rows_of_one_block_are_spread_over_the_steps_of_their_window():
    order = StreamOrder(blocks(*[64] * 100), window=1024, batch_size=64, seed=0)
    steps_of_block = {}
    for step in range(16):
        for row in order.rows_at(range(step * 64, (step + 1) * 64)):
            steps_of_block.setdefault(row // 64, set()).add(step)

    assert np.mean([len(steps) for steps in steps_of_block.values()]) > 10


@pytest.mark.slow
def test_all_orders_of_a_small_window_come_about_equally_often():
    counts = {}
    for seed in range(3000):
        order = StreamOrder(blocks(3), window=3, batch_size=3, seed=seed)
        rows = tuple(order.rows_at(range(3)).tolist())
        counts[rows] = counts.get(rows, 0) + 1

    assert len(counts) == 6
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 25  # chi-squared, 5 degrees
