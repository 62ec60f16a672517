"""Groups among folds and dev parts, against the definition written out in fractions of whole numbers."""

from fractions import Fraction

import numpy as np
import pytest

from vitcli.data.parts.group_assignment import GroupCounts, folds_of, held_out_rows


def by_definition(
    groups: list[int], labels: list[int], parts: list[Fraction], order: list[int], in_first: int | None = None
) -> list[int]:
    """The part of each row: every choice by the whole chi-squared distance, summed anew without rounding.

    A group `in_first` is in the first part before any is chosen for.
    """
    rows = {group: [row for row, of in enumerate(groups) if of == group] for group in set(groups)}
    largest = sorted(rows, key=lambda group: (-len(rows[group]), min(map(order.index, rows[group]))))
    columns = [
        *({row for row, of in enumerate(labels) if of == label} for label in set(labels)),
        {*range(len(labels))},
    ]
    part_of: dict[int, int] = {}

    def distance(of_rows: dict[int, int]) -> Fraction:
        total = Fraction(0)
        for part, fraction in enumerate(parts):
            for column in columns:
                target = fraction * len(column)
                held = sum(of_rows.get(row) == part for row in column)
                total += (held - target) ** 2 / target
        return total

    part_of |= dict.fromkeys(rows.get(in_first, ()), 0)
    for group in (group for group in largest if group != in_first):
        each = [distance(part_of | dict.fromkeys(rows[group], part)) for part in range(len(parts))]
        part_of |= dict.fromkeys(rows[group], each.index(min(each)))
    return [part_of[row] for row in range(len(groups))]


def random_case(seed: int) -> tuple[list[int], list[int], list[int]]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(12, 28))
    groups = np.unique(rng.integers(0, rng.integers(5, 20), count), return_inverse=True)[1]
    return groups.tolist(), rng.integers(0, 3, count).tolist(), rng.permutation(count).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_folds_are_those_of_the_definition(seed):
    groups, labels, order = random_case(seed)
    num_folds = 2 + seed % 3
    counts = GroupCounts(np.array(groups), np.array(labels), order_N=np.array(order))

    folds = folds_of(counts, num_folds)

    assert folds.tolist() == by_definition(groups, labels, [Fraction(1, num_folds)] * num_folds, order)
    assert all(len({folds[row] for row in range(len(groups)) if groups[row] == g}) == 1 for g in set(groups))
    assert set(folds.tolist()) == set(range(num_folds))


def test_without_groups_each_fold_has_its_fraction_of_every_class_to_within_one_image():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 211)
    counts = GroupCounts(np.arange(211), labels, order_N=rng.permutation(211))

    folds = folds_of(counts, 5)

    for label in range(7):
        sizes = np.bincount(folds[labels == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert np.ptp(np.bincount(folds)) <= 2


@pytest.mark.parametrize("seed", range(30))
def test_a_dev_part_has_whole_groups_of_every_class_that_has_two(seed):
    groups, labels, order = map(np.array, random_case(seed))
    counts = GroupCounts(groups, labels, order_N=order)
    none = np.zeros(groups.max() + 1, dtype=bool)

    is_held = held_out_rows(counts, 0.2, last_G=none, every_class=True)

    assert not set(groups[is_held]) & set(groups[~is_held])
    for label in set(labels.tolist()):
        of_class = {*groups[labels == label].tolist()}
        assert of_class & {*groups[~is_held].tolist()}, "no class is held out whole"
        others = [g for g in of_class if all(len({*groups[labels == k]}) > 1 for k in labels[groups == g])]
        if len(of_class) > 4 and len(others) > 2:
            assert of_class & {*groups[is_held].tolist()}, "a class with groups to spare is held out"


@pytest.mark.parametrize("seed", range(12))
def test_a_group_with_all_of_a_class_is_trained_on_and_the_others_are_divided_around_it(seed):
    groups, labels, order = random_case(seed)
    sole, count = max(groups) + 1, len(groups)
    groups, labels, order = groups + [sole] * 3, labels + [3] * 3, [*range(count, count + 3), *order]
    counts = GroupCounts(np.array(groups), np.array(labels), order_N=np.array(order))

    none = np.zeros(sole + 1, dtype=bool)
    is_held = held_out_rows(counts, 0.5, last_G=none, every_class=True)

    expected = by_definition(groups, labels, [Fraction(1, 2)] * 2, order, in_first=sole)
    assert {(labels[row], expected[row]) for row in range(count)} == {
        (k, p) for k in range(3) for p in (0, 1)
    }
    assert is_held.tolist() == [part == 1 for part in expected]


def test_groups_that_were_trained_on_are_held_out_only_where_there_are_no_others():
    groups, labels = np.arange(40), np.arange(40) % 2
    counts = GroupCounts(groups, labels, order_N=np.arange(40))
    was_trained = (np.arange(40) % 2 == 0) & (np.arange(40) < 38)  # all of class 0 but one

    is_held = held_out_rows(counts, 0.1, last_G=was_trained, every_class=True)

    assert is_held[38] and not is_held[was_trained].any() and is_held.sum() >= 3
    was_trained[38] = True
    again = held_out_rows(counts, 0.1, last_G=was_trained, every_class=True)
    assert again[was_trained].sum() == 1, "one of the class that has no others"


def test_rows_of_several_labels_count_in_each_of_their_classes():
    labels = np.array([[0, 1], [0, -1], [1, -1], [0, 1], [0, -1], [1, -1]])
    counts = GroupCounts(np.arange(6), labels, order_N=np.arange(6))

    folds = folds_of(counts, 2)

    assert counts.totals_C.tolist() == [4, 4, 6]
    for label in (0, 1):
        assert np.bincount(folds[(labels == label).any(axis=1)]).tolist() == [2, 2]


def test_a_fraction_below_every_group_takes_the_smallest():
    groups = np.repeat([0, 1, 2, 3], [5, 4, 2, 3])
    counts = GroupCounts(groups, np.zeros(14, dtype=int), order_N=np.arange(14))

    is_held = held_out_rows(counts, 0.01, last_G=np.zeros(4, dtype=bool), every_class=False)

    assert {*groups[is_held]} == {2}


def test_a_class_is_held_out_by_a_larger_group_where_the_smallest_was_trained_on():
    groups = np.append(np.repeat([0, 1, 2], [10, 2, 1]), np.arange(3, 43))
    labels = (groups > 2).astype(int)
    counts = GroupCounts(groups, labels, order_N=np.arange(53))

    is_held = held_out_rows(counts, 0.05, last_G=np.isin(np.arange(43), (0, 2)), every_class=True)

    assert {*groups[is_held & (labels == 0)]} == {1}
