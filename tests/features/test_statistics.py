"""Sums of a closed form as integers: whatever is added and taken away, they are those of the images left."""

from pathlib import Path

import numpy as np
import pytest

from vitcli.errors import DataError
from vitcli.features import least_squares
from vitcli.features.statistics import STEP, ClosedFormStatistics, gram_of, quantised
from vitcli.output.run_folder import CLOSED_FORM as FILE

NAMES = ("ant", "bee", "cat", "dog", "eel")
RNG = np.random.default_rng(0)
FEATURES_ND = RNG.normal(RNG.normal(size=24), 3.0, (90, 24)).astype(np.float32)
LABELS_N = np.arange(90) % 5
DIGESTS_N = RNG.permutation(2**20)[:90].astype(np.uint64) + 1


def of(rows, names=NAMES, groups_N=None) -> ClosedFormStatistics:
    """The rows by one sum; `names` is the order of the classes in their data set."""
    labels_N = np.array([names.index(NAMES[label]) for label in LABELS_N[rows]], dtype=np.int64)
    return ClosedFormStatistics.of(
        FEATURES_ND[rows], labels_N, DIGESTS_N[rows], class_names=names, groups_N=groups_N
    )


def bytes_of(statistics: ClosedFormStatistics, folder: Path) -> bytes:
    statistics.write(folder / FILE, {})
    return (folder / FILE).read_bytes()


def without(statistics: ClosedFormStatistics, rows) -> ClosedFormStatistics:
    return statistics.without(np.isin(statistics.digests_N, DIGESTS_N[rows]))


def test_the_layer_is_that_of_the_rows():
    every = np.arange(90)
    statistics = of(every)
    features_ND = quantised(FEATURES_ND) * STEP
    rows = least_squares.solve(features_ND, LABELS_N, num_classes=5, l2=[3.0], groups_N=None)
    expected = least_squares.as_layer(rows, rows.weights(0), scale=2.5)

    for value, wanted in zip(statistics.layer(3.0, scale=2.5), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


def test_a_constant_feature_has_no_weight():
    features_ND = np.concatenate([FEATURES_ND, np.full((90, 1), 7.3, np.float32)], axis=1)
    statistics = ClosedFormStatistics.of(features_ND, LABELS_N, DIGESTS_N, class_names=NAMES)

    assert (statistics.layer(1.0)[0][-1] == 0).all()


def test_products_are_exact_where_float64_is_not():
    # 200,000 squares of 2^23 - 1 are above 2^63 / 2, and the sum of 2^18 products leaves float64 behind.
    large_ND = np.full((5_000, 2), 2**23 - 1, dtype=np.int32)
    large_ND[::3, 1] = -(2**23 - 2)
    columns = [[int(value) for value in column] for column in large_ND.T]
    exact = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in columns] for x in columns]

    assert gram_of(large_ND).tolist() == exact


def test_a_hundred_ways_of_adding_and_taking_away_end_in_the_same_bytes(tmp_path):
    for seed in range(100):
        rng = np.random.default_rng(seed)
        there, statistics = np.zeros(90, dtype=bool), ClosedFormStatistics.of_nothing(24)
        for _ in range(rng.integers(2, 9)):
            chosen = rng.random(90) < rng.random()
            if rng.random() < 0.6:
                new = np.flatnonzero(chosen & ~there)
                statistics = statistics.plus(of(rng.permutation(new), tuple(rng.permutation(NAMES).tolist())))
                there[new] = True
            else:
                statistics = without(statistics, np.flatnonzero(chosen))
                there &= ~chosen

        there[0] = there[0] or not there.any()
        statistics = statistics if len(statistics) else of([0])
        assert bytes_of(statistics, tmp_path) == bytes_of(of(np.flatnonzero(there)), tmp_path), seed


def test_the_file_holds_nothing_of_an_image_that_was_taken_away(tmp_path):
    content = bytes_of(without(of(np.arange(90)), [4]), tmp_path)

    assert quantised(FEATURES_ND[4]).tobytes()[:16] not in content
    assert DIGESTS_N[4].tobytes() not in content
    assert quantised(FEATURES_ND[5]).tobytes()[:16] in content


def test_a_group_keeps_its_images_when_the_first_of_them_goes():
    groups_N = np.arange(90, dtype=np.uint64) // 3
    statistics = of(np.arange(90), groups_N=groups_N)
    first = int(np.flatnonzero(DIGESTS_N[:3] == DIGESTS_N[:3].min())[0])
    rest = without(statistics, [first])
    others = [row for row in range(3) if row != first]
    members = rest.digests_N[rest.groups_N == DIGESTS_N[others].min()]

    assert sorted(members) == sorted(DIGESTS_N[others])


def test_the_order_of_classes_in_a_data_set_does_not_matter(tmp_path):
    assert bytes_of(of(np.arange(90), NAMES[::-1]), tmp_path) == bytes_of(of(np.arange(90)), tmp_path)


def test_an_image_in_two_classes_belongs_to_the_first_by_name_whatever_came_first():
    rows, labels_N, digests_N = np.arange(6), np.array([3, 0, 1, 2, 4, 0]), DIGESTS_N[[0, 1, 2, 3, 4, 0]]
    sums = [
        ClosedFormStatistics.of(FEATURES_ND[order], labels_N[order], digests_N[order], class_names=NAMES)
        for order in (rows, rows[::-1])
    ]

    assert sums[0].digest == sums[1].digest
    assert sums[0].counts_K.tolist() == [2, 1, 1, 1] and "dog" not in sums[0].class_names


def test_a_class_without_an_image_is_gone():
    rest = without(of(np.arange(90)), np.flatnonzero(LABELS_N == 2))

    assert rest.class_names == ("ant", "bee", "dog", "eel")
    assert rest.counts_K.tolist() == [18] * 4


def test_what_was_written_is_read_back(tmp_path):
    written = of(np.arange(90))
    written.write(tmp_path / FILE, {"l2": "sweep"})
    read, about = ClosedFormStatistics.read(tmp_path / FILE)

    assert (read.digest, about["l2"]) == (written.digest, "sweep")


@pytest.mark.parametrize("value", [np.nan, np.inf, 128.0, -1e9])
def test_a_feature_beyond_fixed_point_is_refused(value):
    with pytest.raises(DataError, match="fixed point ends"):
        quantised(np.array([[1.0, value]]))


@pytest.mark.parametrize("damage", ["cut", "zeros in a row", "one product", "another file"])
def test_a_damaged_file_is_refused(damage, tmp_path):
    content = bytearray(bytes_of(of(np.arange(90)), tmp_path))
    row = content.index(quantised(FEATURES_ND[4]).tobytes())
    content[row : row + 4] = b"\0\0\0\1" if damage == "zeros in a row" else content[row : row + 4]
    gram = content.index(of(np.arange(90)).gram_DD.tobytes()) + 8  # beside the diagonal
    content[gram] ^= 1 if damage == "one product" else 0
    content = content[:-1] if damage == "cut" else content
    (tmp_path / FILE).write_bytes(b"hello" if damage == "another file" else bytes(content))

    with pytest.raises(DataError, match="cannot be read"):
        ClosedFormStatistics.read(tmp_path / FILE)
