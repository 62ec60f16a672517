"""Which rows a step sees: a permutation of every epoch, the same for any number of processes."""

from itertools import chain

import numpy as np
import pytest

from vitcli.data.sampler import derive_seed, permute, rows_at, step_indices, step_positions

RUN = dict(num_examples=1_000, batch_size=64, seed=0)
SIZES = [1, 2, 3, 5, 24, 1_000, 65_537]


def images_of(step: int, world_size: int = 1) -> list[int]:
    shares = [step_indices(step, rank=rank, world_size=world_size, **RUN) for rank in range(world_size)]
    return list(chain(*shares))


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


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("step", [0, 15, 17])
def test_a_step_sees_the_same_images_on_any_number_of_gpus(step, world_size):
    assert images_of(step, world_size) == images_of(step)


def test_an_epoch_shows_every_image_once_even_when_it_ends_inside_a_step():
    sixteen_steps = [i for step in range(16) for i in images_of(step)]

    assert sorted(sixteen_steps[:1_000]) == list(range(1_000))


def test_two_epochs_come_in_different_orders():
    two_epochs = [i for step in range(32) for i in images_of(step)]

    assert two_epochs[:1_000] != two_epochs[1_000:2_000]
    assert sorted(two_epochs[1_000:2_000]) == list(range(1_000))


def test_two_seeds_come_in_different_orders():
    one, other = (rows_at(range(1_000), num_examples=1_000, seed=seed) for seed in (0, 1))

    assert (one == other).sum() < 10  # one row is expected to stay in its place


def test_the_order_is_pinned_so_that_a_run_goes_on_under_the_next_release():
    assert step_indices(3, num_examples=10, batch_size=8, seed=7, rank=1, world_size=2) == [5, 8, 0, 6]


@pytest.mark.parametrize("num_examples", [1, 5, 100, 300_000_000])
def test_the_permutation_is_the_feistel_network_of_its_description(num_examples):
    places = np.arange(min(num_examples, 40))

    assert permute(places, num_examples=num_examples, key=2**63 + 9).tolist() == [
        feistel(int(place), num_examples, 2**63 + 9) for place in places
    ]


def test_a_batch_may_be_larger_than_the_data_set():
    rows = step_indices(0, num_examples=3, batch_size=10, seed=0, rank=0, world_size=1)

    assert [sorted(rows[first : first + 3]) for first in (0, 3, 6)] == [[0, 1, 2]] * 3


def test_the_shares_of_a_step_follow_each_other_without_a_gap():
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
