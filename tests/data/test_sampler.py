"""The rows of a step: every epoch shuffled, tables and shards, the same on any number of processes."""

import numpy as np
import pytest

from vitcli.data.sampler import ClassOrder, StreamOrder, TrainSampler, derive_seed, permute, step_positions


def blocks(*sizes: int) -> np.ndarray:
    return np.array([0, *np.cumsum(sizes)])


def ragged(num_rows: int, seed: int = 0) -> np.ndarray:
    """Blocks of 1 to 40 rows."""
    draws = np.random.default_rng(seed).integers(1, 41, num_rows)
    inside = np.cumsum(draws)
    return np.array([0, *inside[inside < num_rows], num_rows])


RUN = dict(num_examples=1_000, block_starts=None, window=256, batch_size=64, seed=0)
TABLE, SHARDS = {}, {"block_starts": ragged(1_000)}
SIZES = [1, 2, 3, 5, 24, 1_000, 65_537]
either = pytest.mark.parametrize("data", [TABLE, SHARDS], ids=["table", "shards"])


def examples_of(step: int, world_size: int = 1, **changes) -> list[tuple[int, int]]:
    """Row and position of the examples that all processes load at a step, rank after rank."""
    samplers = [TrainSampler(**RUN | changes, rank=rank, world_size=world_size) for rank in range(world_size)]
    return [example for sampler in samplers for example in sampler.rows_of_step(step)]


def rows_of(steps: range, **changes) -> list[int]:
    return [row for step in steps for row, _ in examples_of(step, **changes)]


def shuffled(num_examples: int, *, key: int = 0) -> np.ndarray:
    return permute(np.arange(num_examples), num_examples=num_examples, key=key)


def chi_square(table: np.ndarray) -> float:
    """In standard deviations from what is expected when every cell is equally likely."""
    expected, freedom = table.sum() / table.size, table.size - 1
    return float((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def feistel(place: int, num_examples: int, key: int) -> int:
    """The permutation once more, on Python's unbounded integers."""
    half = max(1, ((num_examples - 1).bit_length() + 1) // 2)
    while True:
        left, right = divmod(place, 1 << half)
        for number in range(8):
            word = right ^ derive_seed(key, "feistel", number)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                word = (word ^ (word >> shift)) * factor % 2**64
            left, right = right, left ^ ((word ^ (word >> 31)) % (1 << half))
        place = (left << half) + right
        if place < num_examples:
            return place


@either
@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("step", [0, 15, 17])
def test_a_step_sees_the_same_images_on_any_number_of_gpus(step, world_size, data):
    assert examples_of(step, world_size, **data) == examples_of(step, **data)


@either
def test_every_example_of_a_run_has_a_position_of_its_own(data):
    positions = [position for step in range(20) for _, position in examples_of(step, world_size=4, **data)]

    assert positions == list(range(20 * 64))


@either
def test_an_epoch_shows_every_image_once_even_when_it_ends_inside_a_step(data):
    assert sorted(rows_of(range(16), **data)[:1_000]) == list(range(1_000))


@either
def test_two_epochs_come_in_different_orders(data):
    rows = rows_of(range(32), **data)

    assert rows[:1_000] != rows[1_000:2_000]
    assert sorted(rows[1_000:2_000]) == list(range(1_000))


@either
def test_two_seeds_come_in_different_orders(data):
    first, second = (np.array(rows_of(range(15), seed=seed, **data)) for seed in (0, 1))

    assert (first == second).sum() < 10  # one row is expected to stay in its place


def test_the_order_is_pinned_so_that_a_run_resumes_under_the_next_release():
    table = TrainSampler(10, None, window=8, batch_size=8, seed=7, rank=1, world_size=2)
    shards = TrainSampler(13, blocks(3, 5, 1, 4), window=8, batch_size=4, seed=7, rank=1, world_size=2)

    assert table.rows_of_step(3) == [(5, 28), (8, 29), (0, 30), (6, 31)]
    assert [shards.rows_of_step(step) for step in (2, 3, 4)] == [
        [(0, 10), (1, 11)],
        [(2, 14), (3, 15)],
        [(1, 18), (4, 19)],
    ]


@pytest.mark.parametrize("num_examples", [1, 5, 100, 300_000_000])
def test_the_permutation_is_the_feistel_network_of_its_description(num_examples):
    places = np.arange(min(num_examples, 40))

    assert permute(places, num_examples=num_examples, key=2**63 + 9).tolist() == [
        feistel(int(place), num_examples, 2**63 + 9) for place in places
    ]


def test_a_batch_may_be_larger_than_the_data_set():
    rows = rows_of(range(1), num_examples=3, batch_size=10)

    assert [sorted(rows[first : first + 3]) for first in (0, 3, 6)] == [[0, 1, 2]] * 3


def test_the_positions_of_the_ranks_follow_each_other_without_a_gap():
    assert [step_positions(5, batch_size=12, rank=rank, world_size=3) for rank in range(3)] == [
        range(60, 64),
        range(64, 68),
        range(68, 72),
    ]


@pytest.mark.parametrize("num_examples", SIZES)
def test_every_row_has_exactly_one_place(num_examples):
    for key in (0, 1, 2**64 - 1):
        assert np.array_equal(np.sort(shuffled(num_examples, key=key)), np.arange(num_examples))


def test_three_hundred_million_rows_cost_no_memory_and_meet_nowhere():
    places = np.random.default_rng(0).choice(300_000_000, 20_000)
    places = np.unique(np.append(places, [0, 1, 299_999_999]))
    rows = permute(places, num_examples=300_000_000, key=5)

    assert rows.min() >= 0 and rows.max() < 300_000_000
    assert len(np.unique(rows)) == len(places)
    assert abs(chi_square(np.bincount(rows // 3_000_000, minlength=100))) < 5


def test_a_place_has_the_same_row_whoever_asks_along_with_it():
    alone = [int(permute(np.array([place]), num_examples=1_000, key=3)[0]) for place in range(50)]

    assert alone == shuffled(1_000, key=3)[:50].tolist()


def test_every_row_is_as_likely_in_every_place():
    table = np.zeros((24, 24))
    for key in range(600):
        table[np.arange(24), shuffled(24, key=key)] += 1

    assert abs(chi_square(table)) < 5


def test_all_orders_of_four_rows_come_up_about_equally_often():
    orders = np.array([shuffled(4, key=key) @ [64, 16, 4, 1] for key in range(2_400)])
    _, counts = np.unique(orders, return_counts=True)

    assert len(counts) == 24
    assert abs(chi_square(counts)) < 5


def test_neighbouring_places_do_not_get_neighbouring_rows():
    rows = shuffled(65_537)
    distances = np.abs(np.diff(rows))

    assert (distances == 1).sum() < 15  # two are expected
    assert distances.mean() == pytest.approx(65_537 / 3, rel=0.02)  # of two uniform draws
    assert abs(np.corrcoef(np.arange(65_537), rows)[0, 1]) < 0.02


def test_each_purpose_and_counter_has_a_seed_of_its_own():
    asked = [
        (seed, purpose, *counters)
        for seed in range(4)
        for purpose in ("order", "augment")
        for counters in [(), (0,), (1,), (11,), (1, 1), (0, 11), (1, 0)]
    ]

    assert len({derive_seed(*words) for words in asked}) == len(asked)


def test_a_seed_is_the_same_on_every_machine_and_has_64_bits():
    assert derive_seed(0, "order", 0) == 6942163024847554866
    assert max(derive_seed(0, "order", epoch).bit_length() for epoch in range(100)) == 64


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
def test_every_row_of_the_shards_comes_once_in_every_epoch(starts, window, batch_size):
    order = StreamOrder(starts, window=window, batch_size=batch_size, seed=3)
    n = int(starts[-1])

    for epoch in range(3):
        rows = order.rows_at(range(epoch * n, (epoch + 1) * n))
        assert sorted(rows.tolist()) == list(range(n))


def test_a_row_of_the_shards_does_not_depend_on_how_positions_are_batched():
    order = StreamOrder(ragged(1003), window=64, batch_size=16, seed=1)
    at_once = order.rows_at(range(1500))
    for world_size in (1, 16):
        per_rank = 16 // world_size
        pieces = [
            order.rows_at(range(step * 16 + rank * per_rank, step * 16 + (rank + 1) * per_rank))
            for step in range(93)
            for rank in range(world_size)
        ]
        assert np.array_equal(np.concatenate(pieces), at_once[: 93 * 16])


def test_streamed_epochs_and_seeds_differ_and_neither_is_the_order_on_disk():
    n, starts = 1000, ragged(1000)
    first, second = (
        StreamOrder(starts, window=100, batch_size=10, seed=s).rows_at(range(2 * n)) for s in (0, 1)
    )

    assert not np.array_equal(first[:n], first[n:])
    assert not np.array_equal(first, second)
    assert np.abs(np.diff(first[:n])).mean() > 5


def test_a_step_reads_few_blocks_and_each_process_its_part_of_them():
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


# Classes in other proportions ------------------------------------------------------------------------------


LONG_TAIL = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 5], [70, 20, 9, 1]))


def drawn(sampling: str, num_epochs: int, labels: np.ndarray = LONG_TAIL, seed: int = 0) -> np.ndarray:
    """Rows of the first epochs, (epochs, rows)."""
    order = ClassOrder(labels, sampling=sampling, seed=seed)
    return order.rows_at(range(num_epochs * len(labels))).reshape(num_epochs, -1)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("balanced", [25, 25, 25, 25]),
        ("sqrt", 100 * np.sqrt([70, 20, 9, 1]) / np.sqrt([70, 20, 9, 1]).sum()),
        ("uniform", [70, 20, 9, 1]),
    ],
)
def test_every_epoch_has_the_chosen_proportions_of_classes(sampling, expected):
    rows = drawn(sampling, 50)
    counts = np.array([[(LONG_TAIL[epoch] == label).sum() for label in (0, 1, 2, 5)] for epoch in rows])

    assert (abs(counts - expected) < 2).all()
    assert (abs(counts.cumsum(axis=0) - np.outer(np.arange(1, 51), expected)) < 1.001).all()


def test_of_a_class_as_many_rows_are_drawn_as_are_whole_by_the_end_of_an_epoch():
    """Three classes share five places an epoch: the ends 5/3, 10/3 and 5 are whole at 1, 3 and 5."""
    order = ClassOrder(np.array([0, 1, 2, 2, 2]), sampling="balanced", seed=0)

    assert [order._num_drawn(epochs).tolist() for epochs in range(4)] == [
        [0, 0, 0],
        [1, 2, 2],
        [3, 3, 4],
        [5] * 3,
    ]


@pytest.mark.parametrize("sampling", ["balanced", "sqrt", "uniform"])
def test_all_rows_of_a_class_are_drawn_equally_often_and_in_another_order_each_time(sampling):
    rows = drawn(sampling, 30)
    counts = np.stack([np.bincount(epoch, minlength=100) for epoch in rows]).cumsum(axis=0)

    for label in (0, 1, 2, 5):
        of_class = counts[:, label == LONG_TAIL]
        assert (of_class.max(axis=1) - of_class.min(axis=1) <= 1).all()
    order = ClassOrder(LONG_TAIL, sampling=sampling, seed=0)
    assert len({tuple(order._shuffled_class(1, number)) for number in range(10)}) == 10


@pytest.mark.parametrize("num_rows", [1, 2, 7, 50, 1_000])
def test_classes_of_a_single_row_each_come_once_an_epoch(num_rows):
    for sampling in ("balanced", "sqrt"):
        rows = drawn(sampling, 5, np.arange(num_rows))
        assert all(sorted(epoch) == list(range(num_rows)) for epoch in rows.tolist())


def test_the_order_of_classes_is_mixed_and_another_with_another_seed():
    labels = np.repeat(np.arange(4), 250)
    rows = drawn("balanced", 4, labels)
    parts = labels[rows.reshape(-1, 50)]  # each about a step

    assert chi_square(np.stack([np.bincount(part, minlength=4) for part in parts])) < 4
    assert len({tuple(epoch) for epoch in rows}) == 4
    assert (drawn("balanced", 4, labels, seed=1) != rows).any()
    assert (drawn("balanced", 4, labels) == rows).all()


def test_a_step_has_the_same_rows_of_all_classes_on_any_number_of_processes():
    data = {
        "num_examples": 100,
        "by_class": ClassOrder(LONG_TAIL, sampling="balanced", seed=4),
        "batch_size": 8,
    }
    steps = range(5, 60)

    assert (
        rows_of(steps, **data) == rows_of(steps, world_size=2, **data) == rows_of(steps, world_size=4, **data)
    )
    again = [examples_of(step, **data) for step in steps]
    assert again[7] == examples_of(12, **data)


def test_classes_come_in_another_order_in_every_epoch():
    labels_of_epochs = LONG_TAIL[drawn("balanced", 6)]

    assert len({tuple(labels) for labels in labels_of_epochs}) == 6


def test_a_window_is_rounded_up_to_whole_steps():
    order = StreamOrder(blocks(*[1] * 1_000), window=100, batch_size=64, seed=3)
    by_block = permute(np.arange(1_000), num_examples=1_000, key=derive_seed(3, "blocks", 0))

    assert {*order.rows_at(range(128))} == {*by_block[:128]}
    assert {*order.rows_at(range(64))} != {*by_block[:64]}, "two steps share a window of 100 rows"
