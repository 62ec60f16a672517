"""The few-shot classifier: the authors' evaluator, other solvers, and really leaving rows out."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from vitcli.errors import DataError, VitError
from vitcli.features import least_squares
from vitcli.features.least_squares import (
    accuracies,
    choose_l2,
    draw_shots,
    left_out_accuracies,
    left_out_hits,
    left_out_scores,
)

GOLDEN = SHARED / "golden"
ABOUT = json.loads((GOLDEN / "fewshot.json").read_text()) if (GOLDEN / "fewshot.json").is_file() else {}
needs_golden = pytest.mark.skipif(not ABOUT, reason="the golden data (VIT_TEST_DATA) is not here")
L2 = (2.0**-10, 1.0, 1024.0)
solve = partial(least_squares.solve, groups_N=None)  # but where a test names groups
WIDE, SQUARE, TALL = (12, 30), (31, 30), (90, 30)  # rows and features; with a bias there is a column more


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "fewshot.npz") as arrays:
        return dict(arrays)


def problem(shape: tuple[int, int], num_classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around a centre for each class, classes out of order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(shape[0]) % num_classes)
    centres = rng.normal(0, 1, (num_classes, shape[1]))
    return (3 + centres[labels] + rng.normal(0, 2, shape)).astype(np.float32), labels


def one_by_one(features, labels, num_classes, l2) -> np.ndarray:
    """The weights as the formula is written, one l2 at a time."""
    inputs = features.astype(np.float64)
    inputs = (inputs - np.mean(inputs, axis=0)) / (np.std(inputs, axis=0) + 1e-5)
    return formula(np.pad(inputs, ((0, 0), (0, 1)), constant_values=100.0), labels, num_classes, l2)


def formula(inputs: np.ndarray, labels: np.ndarray, num_classes: int, l2: float) -> np.ndarray:
    targets = np.where(labels[:, None] == np.arange(num_classes), 1.0, -1.0)
    return np.linalg.solve(inputs.T @ inputs + l2 * np.eye(inputs.shape[1]), inputs.T @ targets)


def rel(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference over the largest number; where all are 0, the difference itself."""
    return float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1))


@needs_golden
@pytest.mark.parametrize("shots", ABOUT.get("shots", []))
@pytest.mark.parametrize("seed", ABOUT.get("seeds", []))
def test_the_evaluator_s_rows_weights_scores_and_accuracies(golden, seed, shots):
    key, place = f"seed{seed}_shots{shots}", (ABOUT["seeds"].index(seed), ABOUT["shots"].index(shots))
    classes, l2 = ABOUT["classes"], ABOUT["l2"]
    test = golden["test_features"], golden["test_labels"]
    rows = draw_shots(golden["train_labels"], num_classes=classes, shots=ABOUT["shots"], seed=seed)[shots]
    train = golden["train_features"][rows], golden["train_labels"][rows]

    solution = solve(*train, num_classes=classes, l2=l2)
    found = accuracies(solution, *test)

    assert rows.tolist() == golden[f"indices/{key}"].tolist()
    assert found.tolist() == golden["accuracy_float64"][place].tolist()
    default = l2.index(ABOUT["default_l2"])  # the evaluator's float32 is not right for small l2
    assert abs(found[default] - golden["accuracy_reference"][place][default]) < 1.5 / len(test[0])
    if f"weights/{key}" in golden:
        for which in range(len(l2)):
            assert rel(solution.weights(which), golden[f"weights/{key}"][which]) < 1e-9
        assert rel(solution.mean_D, golden[f"mean/{key}"]) < 1e-14
        assert rel(solution.std_D, golden[f"std/{key}"]) < 1e-14
        scores = solution.inputs(test[0]) @ solution.weights(default)
        theirs = golden[f"scores_default_l2/{key}"]
        assert rel(scores, theirs) < 1e-11
        assert scores.argmax(axis=1).tolist() == theirs.argmax(axis=1).tolist()


@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL, (1, 4)], ids=str)
def test_weights_are_those_of_a_linear_solver_on_either_side(shape):
    features, labels = problem(shape)
    solution = solve(features, labels, num_classes=5, l2=L2)

    assert len(solution.eigenvalues_R) == min(solution.inputs_NE.shape)
    for which, l2 in enumerate(L2):
        expected = one_by_one(features, labels, 5, l2)
        assert rel(solution.weights(which), expected) < 1e-8
        others = problem(shape, seed=1)[0]
        inputs = (others - solution.mean_D) / solution.std_D
        by_hand = inputs @ expected[:-1] + 100 * expected[-1]
        assert rel(solution.inputs(others) @ solution.weights(which), by_hand) < 1e-8


@pytest.mark.parametrize("shape", [WIDE, TALL], ids=str)
def test_weights_are_those_of_scikit_learn(shape):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = problem(shape)
    solution = solve(features, labels, num_classes=5, l2=L2)
    targets = np.where(labels[:, None] == np.arange(5), 1.0, -1.0)

    for which, l2 in enumerate(L2):
        ridge = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
        assert rel(solution.weights(which), ridge.fit(solution.inputs_NE, targets).coef_.T) < 1e-8


def test_features_are_standardised_with_the_population_deviation_and_the_bias_is_100():
    solution = solve(np.array([[1.0], [3.0]]), np.array([0, 1]), num_classes=2, l2=[1.0])

    assert (solution.mean_D.tolist(), solution.std_D.tolist()) == ([2.0], [1.00001])
    assert solution.inputs_NE.tolist() == [[-1 / 1.00001, 100.0], [1 / 1.00001, 100.0]]


def test_one_row_is_answered_by_the_bias_alone():
    solution = solve(np.array([[5.0, -2.0]]), np.array([1]), num_classes=3, l2=[24.0])

    weight = 100 / (100**2 + 24)
    np.testing.assert_allclose(solution.weights(0), np.outer([0, 0, weight], [-1, 1, -1]), rtol=1e-14)
    assert accuracies(solution, np.ones((4, 2)), np.array([1, 1, 2, 0])).tolist() == [0.5]


def test_a_single_class_is_always_right():
    solution = solve(np.eye(3), np.zeros(3, dtype=int), num_classes=1, l2=[1.0])

    assert solution.weights(0).shape == (4, 1)
    assert accuracies(solution, np.eye(3), np.zeros(3, dtype=int)).tolist() == [1.0]


@pytest.mark.parametrize("shape", [WIDE, TALL], ids=str)
def test_a_class_without_a_row_has_minus_one_everywhere_and_is_never_said(shape):
    features, labels = problem(shape, num_classes=3)
    with_gaps = np.array([1, 3, 4])[labels]
    solution = solve(features, with_gaps, num_classes=6, l2=[1.0])
    scores = solution.inputs(features) @ solution.weights(0)

    np.testing.assert_allclose(scores[:, [0, 2, 5]], -1, atol=1e-4)
    assert set(scores.argmax(axis=1)) == {1, 3, 4}
    expected = solve(features, labels, num_classes=3, l2=[1.0]).weights(0)
    assert rel(solution.weights(0)[:, [1, 3, 4]], expected) < 1e-9


@pytest.mark.parametrize("shape", [WIDE, TALL], ids=str)
def test_a_feature_that_is_constant_in_training_counts_for_nothing(shape):
    features, labels = problem(shape)
    features = features.astype(np.float64)
    features[:, 7] = 0.1  # whose mean is not exactly 0.1 when it is summed
    others = np.delete(np.arange(shape[1] + 1), 7)
    solution = solve(features, labels, num_classes=5, l2=[2.0**-10])
    without = solve(np.delete(features, 7, axis=1), labels, num_classes=5, l2=[2.0**-10])

    assert not solution.weights(0)[7].any()
    assert rel(solution.weights(0)[others], without.weights(0)) < 1e-9
    features[:, 7] = 1e6
    scores = solution.inputs(features) @ solution.weights(0)
    assert rel(scores, without.inputs(np.delete(features, 7, axis=1)) @ without.weights(0)) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_computed_in_float64(dtype):
    features, labels = problem(TALL)
    given = torch.from_numpy(features).to(dtype).requires_grad_()
    exact = given.detach().double().numpy()

    ours = solve(given, torch.from_numpy(labels), num_classes=5, l2=L2)
    theirs = solve(exact, labels, num_classes=5, l2=L2)

    assert np.array_equal(ours.weights(0), theirs.weights(0))
    assert np.array_equal(
        accuracies(ours, given, torch.from_numpy(labels)), accuracies(theirs, exact, labels)
    )


class Recorded:
    """Rows made when they are asked for, as those of a memory map are."""

    def __init__(self, features: np.ndarray):
        self.features, self.asked = features, []

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.asked.append(rows)
        return self.features[rows]


@pytest.mark.parametrize("part", [1, 7, 64, 1000])
def test_test_rows_are_scored_in_parts_and_each_counts_once(monkeypatch, part):
    features, labels = problem(TALL)
    test_features, test_labels = problem((200, 30), seed=1)
    solution = solve(features, labels, num_classes=5, l2=L2)
    expected = [
        np.mean((solution.inputs(test_features) @ solution.weights(i)).argmax(axis=1) == test_labels)
        for i in range(3)
    ]

    monkeypatch.setattr(least_squares, "CHUNK_VALUES", part * 31)  # 31 columns are more than 3 l2 x 5 classes
    rows = Recorded(test_features)

    assert accuracies(solution, rows, test_labels).tolist() == expected
    assert max(len(range(*asked.indices(200))) for asked in rows.asked) == min(part, 200)
    assert 0 < expected[2] < 1


def test_among_equal_scores_the_lower_class_counts():
    features, labels = problem(TALL)
    solution = solve(features, labels, num_classes=5, l2=[1.0])
    blank = replace(solution, projected_RK=np.zeros_like(solution.projected_RK))

    assert accuracies(blank, features[:4], np.array([0, 4, 4, 2])).tolist() == [1 / 4]


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_are_drawn_one_class_after_the_other_by_one_generator(seed):
    labels = np.random.default_rng(9).integers(0, 7, 300)
    drawn = draw_shots(labels, num_classes=7, shots=[1, 5, 1000], seed=seed)
    rng = np.random.default_rng(seed)
    permuted = [rng.permutation(np.where(labels == label)[0]) for label in range(7)]

    for shots, rows in drawn.items():
        assert rows.tolist() == [int(row) for one in permuted for row in one[:shots]]
    assert sorted(drawn[1000]) == list(range(300))


def test_a_class_with_fewer_images_gives_what_it_has():
    labels = np.array([2, 0, 2, 2, 0, 3])  # no image of class 1 or 4
    drawn = draw_shots(torch.from_numpy(labels), num_classes=5, shots=[2], seed=0)

    assert labels[drawn[2]].tolist() == [0, 0, 2, 2, 3]


def hits_of(solution: least_squares.Solution) -> np.ndarray:
    """Whether each left-out row is right at each l2."""
    best = [left_out_scores(solution, which).argmax(axis=1) for which in range(len(solution.l2))]
    return np.stack(best, axis=1) == solution.labels_N[:, None]


@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL], ids=str)
def test_left_out_scores_are_those_of_really_leaving_each_row_out(shape):
    features, labels = problem(shape)
    solution = solve(features, labels, num_classes=5, l2=L2)
    for which, l2 in enumerate(L2):
        scores = left_out_scores(solution, which)
        for row in range(len(labels)):
            others = np.arange(len(labels)) != row
            weights = formula(solution.inputs_NE[others], labels[others], 5, l2)
            np.testing.assert_allclose(scores[row], solution.inputs_NE[row] @ weights, atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 60), (300, 40)], ids=str)
def test_the_best_l2_is_chosen_by_leaving_one_out_and_the_largest_among_equals(shape, monkeypatch):
    features, labels = problem(shape, num_classes=8)
    l2 = (1e9, 1e-3, 300.0, 30.0, 3e3, 2e9)  # in no order, and the two largest are worth the same
    solution = solve(features, labels, num_classes=8, l2=l2)
    hits = hits_of(solution)

    monkeypatch.setattr(least_squares, "CHUNK_VALUES", 7 * len(l2) * 8)
    found = left_out_accuracies(solution)
    chosen = choose_l2(solution)

    assert found.tolist() == hits.mean(axis=0).tolist()
    assert len(set(found)) > 2
    assert found[chosen] == found.max()
    assert l2[chosen] == max(value for value, share in zip(l2, found, strict=True) if share == found.max())
    same = replace(solution, projected_RK=np.zeros_like(solution.projected_RK))
    assert l2[choose_l2(same)] == 2e9


def test_a_row_alone_in_its_class_has_no_say_in_the_choice():
    features, labels = problem((41, 10))
    labels[0] = 5
    solution = solve(features, labels, num_classes=6, l2=L2)
    right = hits_of(solution)

    assert not right[0].any()  # without the row, its class is -1 everywhere
    assert left_out_accuracies(solution).tolist() == right[1:].mean(axis=0).tolist()


def test_one_shot_leaves_nothing_to_choose_by():
    solution = solve(*problem((5, 30)), num_classes=5, l2=L2)

    assert not hits_of(solution).any()
    with pytest.raises(VitError, match="one image or group per class") as refused:
        choose_l2(solution)
    assert "1024" in refused.value.fix and refused.value.where


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_no_number_is_refused_with_its_row(bad, monkeypatch):
    features, labels = problem(TALL)
    solution = solve(features, labels, num_classes=5, l2=L2)
    features[[44, 60], 3] = bad
    monkeypatch.setattr(least_squares, "CHUNK_VALUES", 10 * 31)

    with pytest.raises(DataError, match="2 of 90 rows") as in_training:
        solve(features, labels, num_classes=5, l2=L2)
    with pytest.raises(DataError, match="not a finite number") as in_test:
        accuracies(solution, features, labels)
    assert "row 44" in in_training.value.where and "row 44" in in_test.value.where
    assert in_training.value.fix and in_training.value.exit_code == 3


@pytest.mark.parametrize("l2", [0.0, -1.0, np.nan, np.inf])
def test_an_l2_that_is_not_positive_is_refused(l2):
    with pytest.raises(VitError, match="not a positive number"):
        solve(*problem(TALL), num_classes=5, l2=[1.0, l2])


@pytest.mark.parametrize("repeat", [0, 1], ids=["rows", "features"])
def test_an_l2_below_the_rounding_of_a_singular_problem_is_refused(repeat):
    features, labels = problem((20, 50) if repeat == 0 else (200, 20))
    twice = np.concatenate([features, features], axis=repeat)
    labels = np.tile(labels, 2) if repeat == 0 else labels

    with pytest.raises(VitError, match="rounding"):
        solve(twice, labels, num_classes=5, l2=[1.0, 1e-11])
    assert (
        rel(solve(twice, labels, num_classes=5, l2=[1.0]).weights(0), one_by_one(twice, labels, 5, 1.0))
        < 1e-7
    )
    solve(*problem(TALL), num_classes=5, l2=[1e-11])  # not singular, so the smallest l2 does no harm


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_of_no_class_is_refused_wherever_it_stands(label):
    features, labels = problem(TALL)
    solution = solve(features, labels, num_classes=5, l2=L2)
    labels[8] = label

    for attempt in (
        lambda: solve(features, labels, num_classes=5, l2=L2),
        lambda: accuracies(solution, features, labels),
        lambda: draw_shots(labels, num_classes=5, shots=[1], seed=0),
    ):
        with pytest.raises(DataError, match=f"label {label} is not one of the 5") as refused:
            attempt()
        assert refused.value.where == "row 8 of the labels"


@pytest.mark.parametrize("shots", [[], [0], [5, -1]])
def test_shots_below_one_are_refused(shots):
    with pytest.raises(VitError, match="shots"):
        draw_shots(np.array([0, 1]), num_classes=2, shots=shots, seed=0)


def test_nothing_to_fit_or_to_test_is_refused():
    empty, none = np.empty((0, 3)), np.empty(0, dtype=int)
    solution = solve(np.eye(3), np.arange(3), num_classes=3, l2=[1.0])

    with pytest.raises(DataError, match="no row"):
        solve(empty, none, num_classes=3, l2=[1.0])
    with pytest.raises(DataError, match="no row"):
        accuracies(solution, empty, none)
    with pytest.raises(DataError, match="no row"):
        draw_shots(none, num_classes=3, shots=[1], seed=0)


# Balanced rows ----------------------------------------------------------------------------------------------


def long_tail(shape: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A problem whose classes have about 8, 4, 2, 1 parts of the rows; the class 4 of 6 has none."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.resize([0] * 8 + [1] * 4 + [2] * 2 + [5], shape[0]))
    centres = rng.normal(0, 1, (6, shape[1]))
    return 3 + centres[labels] + rng.normal(0, 2, shape), labels


def weighted_formula(inputs, labels, weights, l2) -> np.ndarray:
    """Weights of the network that minimise sum_i w_i |x_i W - y_i|^2 + l2 |W|^2, by the normal equations."""
    targets = np.where(labels[:, None] == np.arange(6), 1.0, -1.0)
    square = inputs.T @ (weights[:, None] * inputs) + l2 * np.eye(inputs.shape[1])
    return np.linalg.solve(square, inputs.T @ (weights[:, None] * targets))


@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL], ids=str)
@pytest.mark.parametrize(("balance", "power"), [("sqrt", 0.5), ("full", 1)])
def test_balanced_weights_and_left_out_scores_are_those_of_refits_with_weighted_rows(shape, balance, power):
    features, labels = long_tail(shape)
    l2 = (1.0, 1024.0)
    solution = solve(features, labels, num_classes=6, l2=l2, balance=balance)
    sizes = np.bincount(labels)[labels]
    weights = 1 / sizes**power
    weights /= weights.mean()
    plain = solve(features, labels, num_classes=6, l2=l2)
    inputs = plain.inputs_NE

    assert (
        rel(solution.inputs(features), inputs) == 0
    )  # the statistics are those of all rows, without weights
    for which, value in enumerate(l2):
        assert rel(solution.weights(which), weighted_formula(inputs, labels, weights, value)) < 1e-9
        assert rel(solution.weights(which), plain.weights(which)) > 1e-3
        scores = left_out_scores(solution, which)
        for row in range(len(labels)):
            others = np.arange(len(labels)) != row
            refit = weighted_formula(inputs[others], labels[others], weights[others], value)
            np.testing.assert_allclose(scores[row], inputs[row] @ refit, atol=1e-9)


def test_rows_of_weight_two_are_rows_that_stand_there_twice():
    features, labels = long_tail((40, 12))
    labels = np.repeat([0, 1], [32, 8])
    solution = solve(features, labels, num_classes=2, l2=[20.0], balance="full")  # 20 / 32 and 20 / 8
    fourfold = np.concatenate([np.arange(40), np.tile(np.arange(32, 40), 3)])
    inputs = solution.inputs(features)

    expected = formula(inputs[fourfold], labels[fourfold], 2, 20.0 * 32 / 20)
    assert rel(solution.weights(0), expected) < 1e-9


def test_the_best_l2_of_balanced_rows_is_that_of_the_mean_over_classes():
    features, labels = long_tail((300, 40))
    solution = solve(features, labels, num_classes=6, l2=(1e6, 1e-3, 300.0, 3e7), balance="full")
    hits = hits_of(solution)
    per_class = np.mean([hits[labels == label].mean(axis=0) for label in np.unique(labels)], axis=0)

    np.testing.assert_allclose(left_out_accuracies(solution), per_class, rtol=1e-12)
    assert per_class.round(12)[choose_l2(solution)] == per_class.round(12).max()
    assert not np.allclose(per_class, hits.mean(axis=0))


def test_balance_changes_nothing_for_classes_of_one_size():
    features, labels = problem(TALL)
    plain = solve(features, labels, num_classes=5, l2=L2)

    for balance in ("sqrt", "full"):
        balanced = solve(features, labels, num_classes=5, l2=L2, balance=balance)
        assert rel(balanced.weights(1), plain.weights(1)) < 1e-12
        np.testing.assert_allclose(left_out_scores(balanced, 1), left_out_scores(plain, 1), atol=1e-9)


# Sizes of groups: of one row; several of one size; more rows than columns; half of all rows.
GROUPS = {WIDE: (1, 1, 2, 2, 2, 4), SQUARE: (1, 3, 3, 8, 16), TALL: (1, 2, 2, 5, 35, 45)}


@pytest.mark.parametrize("balance", ["none", "full"])
@pytest.mark.parametrize("shape", GROUPS, ids=str)
@pytest.mark.parametrize("most", [1, 2**24])
def test_scores_of_groups_left_out_are_those_of_really_leaving_them_out(shape, balance, most, monkeypatch):
    """Mean, deviation and weights stay those of all rows, and the equations are solved without the group."""
    monkeypatch.setattr(least_squares, "CHUNK_VALUES", most)
    features, labels = problem(shape)
    sizes = GROUPS[shape]
    groups = np.random.default_rng(0).permutation(np.repeat(7 * np.arange(len(sizes)) + 3, sizes))
    solution = solve(features, labels, num_classes=5, l2=L2, groups_N=groups, balance=balance)
    inputs, weights = solution.inputs_NE / solution.root_weights_N1, solution.root_weights_N1[:, 0] ** 2
    targets = 2.0 * (labels[:, None] == np.arange(5)) - 1

    for which, l2 in enumerate(L2):
        scores = left_out_scores(solution, which)
        for group in set(groups.tolist()):
            out, left = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
            weighted = inputs[left].T * weights[left]
            square = weighted @ inputs[left] + l2 * np.eye(inputs.shape[1])
            refit = np.linalg.solve(square, weighted @ targets[left])
            np.testing.assert_allclose(scores[out], inputs[out] @ refit, rtol=1e-5, atol=1e-6)


def test_l2_is_chosen_by_leaving_whole_groups_out():
    features, labels = problem(TALL)
    labels[0] = 5  # of a class that has one group, and is not counted
    groups = np.random.default_rng(3).integers(0, 40, len(labels))
    solution = solve(features, labels, num_classes=6, l2=L2, groups_N=groups)
    hits = hits_of(solution)
    assert not hits[0].any()

    found = left_out_accuracies(solution)

    np.testing.assert_allclose(found, hits[1:].mean(axis=0))
    assert left_out_hits(solution).tolist() == hits.tolist()
    assert choose_l2(solution) == max(range(len(L2)), key=lambda i: (found[i].round(12), L2[i]))
    alone = replace(solution, groups_N=np.arange(len(labels)))
    assert not np.allclose(left_out_accuracies(alone), found)
    with pytest.raises(VitError, match="one image or group per class"):
        left_out_accuracies(replace(solution, groups_N=labels))


def test_drawn_shots_are_whole_groups_as_many_as_there_is_place_for():
    labels = np.arange(60) % 2
    groups = np.arange(60) // 6  # three of each class in each of ten groups

    for seed in range(3):
        draws = draw_shots(labels, num_classes=2, shots=[1, 3, 7, 100], seed=seed, groups_N=groups)
        assert [len(draws[count]) for count in (1, 3, 7, 100)] == [6, 6, 12, 60]
        assert set(draws[3]) <= set(draws[7])
        for label in (0, 1):
            for rows in draws.values():
                drawn = rows[labels[rows] == label]
                whole = np.flatnonzero(np.isin(groups, groups[drawn]) & (labels == label))
                assert sorted(drawn) == whole.tolist()


def test_an_l2_must_exceed_the_rounding_of_the_smallest_eigenvalue():
    eigenvalues_R = np.array([0.0, 1.0, 1e4])  # rounding: 3 * 1e4 * 2.2e-16

    least_squares._check_l2((1e-11,), eigenvalues_R)
    with pytest.raises(VitError):
        least_squares._check_l2((1e-12,), eigenvalues_R)


@pytest.mark.parametrize(("shots", "num_rows"), [(1, 2), (2, 2), (3, 2), (4, 4), (5, 4), (6, 6)])
def test_groups_that_just_fill_the_shots_are_all_drawn(shots, num_rows):
    draw = {"num_classes": 1, "shots": [shots], "seed": 0, "groups_N": np.repeat(np.arange(3), 2)}

    assert len(draw_shots(np.zeros(6, dtype=int), **draw)[shots]) == num_rows


def test_of_accuracies_that_differ_by_rounding_the_largest_l2_is_chosen(monkeypatch):
    monkeypatch.setattr(least_squares, "left_out_accuracies", lambda solution: np.array([0.3, 0.1 + 0.2]))

    assert choose_l2(SimpleNamespace(l2=(8.0, 1.0))) == 0 and 0.1 + 0.2 > 0.3
    assert choose_l2(SimpleNamespace(l2=(1.0, 8.0))) == 1


def test_an_l2_within_the_rounding_of_the_largest_eigenvalue_is_refused():
    """Of a hundred eigenvalues up to 1: 100 times the distance of 1 to the next number, 2.2e-14."""
    eigenvalues = np.linspace(0, 1, 100)

    least_squares._check_l2([2.3e-14], eigenvalues)
    with pytest.raises(
        VitError, match=r"l2 of 2\.2e-14 is lost in the rounding errors of this problem, about 2e-14"
    ):
        least_squares._check_l2([2.2e-14], eigenvalues)
    least_squares._check_l2([1e-15], eigenvalues + 0.1)


def test_parts_are_consecutive_and_end_with_the_last_row(monkeypatch):
    monkeypatch.setattr(least_squares, "CHUNK_VALUES", 12)

    found = [(part.start, part.stop) for part in least_squares.parts(10, 3)]
    assert found == [(0, 4), (4, 8), (8, 10)]
    assert [part.stop for part in least_squares.parts(2, 100)] == [1, 2]
