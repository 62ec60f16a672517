"""The next image by coverage counted pair by pair; guesses by refits; labels taken back leave no trace."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from vitcli.features.least_squares import BIAS
from vitcli.teaching import choosing
from vitcli.teaching.choosing import Chooser


def blobs(sizes: tuple[int, ...], *, spread: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian classes of these sizes in six dimensions, rows shuffled."""
    rng = np.random.default_rng(seed)
    labels_N = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres_KD = 2 * rng.normal(size=(len(sizes), 6))
    features_ND = centres_KD[labels_N] + spread * rng.normal(size=(len(labels_N), 6))
    return features_ND.astype(np.float32), labels_N


def taught(features_ND, labels_N, rows, groups_N=None, seed: int = 0) -> Chooser:
    chooser = Chooser(features_ND, groups_N, seed=seed)
    for row in rows:
        chooser.set_labels([row], int(labels_N[row]))
    return chooser


def slow_next(features_ND, labelled, uncertainty_N) -> int:
    """Return the row whose label would raise the coverage most, counted pair by pair."""
    scaled_ND = (features_ND - features_ND.mean(axis=0)) / features_ND.std(axis=0)
    units = [row / np.sqrt((row**2).sum()) for row in scaled_ND.astype(np.float64)]
    distance = {
        (i, j): np.sqrt(((x - z) ** 2).sum()) for i, x in enumerate(units) for j, z in enumerate(units)
    }
    radius = min([1.0, *(distance[i, j] for i in labelled for j in labelled if i < j)])

    def coverage(rows: list[int]) -> float:
        kernel = {pair: np.exp(-((apart / radius) ** 2)) for pair, apart in distance.items()}
        return sum(u * max(kernel[n, row] for row in rows) for n, u in uncertainty_N.items())

    rest = [row for row in range(len(units)) if row not in labelled]
    return max(rest, key=lambda row: coverage([*labelled, row]))


def slow_probabilities(features_ND, labels_L, rows, row, groups_L) -> np.ndarray:
    """Solve once for each l2 and group that is left out, and fit the temperature by a general optimiser."""
    train_LD = features_ND[rows].astype(np.float64)
    mean_D, std_D = train_LD.mean(axis=0), train_LD.std(axis=0) + 1e-5
    inputs_NE = np.hstack([(features_ND - mean_D) / std_D, np.full((len(features_ND), 1), BIAS)])
    inputs_LE, classes_K = inputs_NE[rows], np.unique(labels_L)
    targets_LK = 2.0 * (labels_L[:, None] == classes_K) - 1

    def scores(l2: float, kept_L: np.ndarray, at_NE: np.ndarray) -> np.ndarray:
        x, y = inputs_LE[kept_L], targets_LK[kept_L]
        return at_NE @ np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)

    def left_out(l2: float) -> np.ndarray:
        return np.array([scores(l2, groups_L != groups_L[i], inputs_LE[i]) for i in range(len(rows))])

    l2 = min(
        (4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0), key=lambda l2: ((left_out(l2) - targets_LK) ** 2).sum()
    )
    spread = 1 / (len(rows) + 2)  # Platt's targets
    smoothed_LK = (1 - spread) * (targets_LK > 0) + spread / len(classes_K)

    def loss(log_scale: float) -> float:
        logits_LK = np.exp(log_scale) * left_out(l2)
        return -(smoothed_LK * (logits_LK - logsumexp(logits_LK, axis=1, keepdims=True))).sum()

    log_scale = minimize_scalar(loss, bounds=(-7, 7), method="bounded", options={"xatol": 1e-9}).x
    logits_K = np.exp(log_scale) * scores(l2, np.ones(len(rows), dtype=bool), inputs_NE[row])
    return np.exp(logits_K - logsumexp(logits_K))


def test_the_first_rows_cover_the_pool_best_pair_by_pair():
    features_ND, _ = blobs((6, 5, 4))
    chooser = Chooser(features_ND, None)
    labelled = []
    for _ in range(4):  # all of one class, as a person may call them: nothing is uncertain yet
        ones = dict.fromkeys(range(len(features_ND)), 1.0)
        row = chooser.next_row(())
        assert row == slow_next(features_ND, labelled, ones)
        labelled.append(row)
        chooser.set_labels([row], 0)


def test_later_rows_cover_uncertain_ones():
    features_ND, labels_N = blobs((8, 8, 8), spread=2.0)
    labelled = list(range(9))
    chooser = taught(features_ND, labels_N, labelled)
    for _ in range(5):
        chances = {row: chooser.guess(row)[1] for row in range(len(features_ND))}
        uncertainty_N = {row: 1 - (p[0] - p[1]) for row, p in chances.items()}
        row = chooser.next_row(())
        assert row == slow_next(features_ND, labelled, uncertainty_N)
        labelled.append(row)
        chooser.set_labels([row], int(labels_N[row]))


def slow_changes(chooser: Chooser, features_ND, labelled, labels_L) -> dict[int, float]:
    """Refit once for each row and label it may get; sum the distances that the scores of the rest move."""
    fit = chooser._fit()
    inputs_NE, (l2,) = fit.solution.inputs(features_ND), fit.solution.l2
    rest = [row for row in range(len(features_ND)) if row not in labelled]
    targets_LK = 2.0 * (labels_L[:, None] == fit.classes_K) - 1

    def scores(rows: list[int], targets: np.ndarray) -> np.ndarray:
        x = inputs_NE[rows]
        return inputs_NE[rest] @ np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)

    before, gains = scores(labelled, targets_LK), {}
    for row in rest:
        moved = [
            np.linalg.norm(scores([*labelled, row], np.vstack([targets_LK, target_K])) - before, axis=1).sum()
            for target_K in 2 * np.eye(len(fit.classes_K)) - 1
        ]
        gains[row] = fit.probabilities(features_ND[[row]])[0] @ moved
    return gains


@pytest.mark.parametrize("num_dimensions", [6, 60])  # more labels than inputs, and fewer
def test_from_ten_labels_per_class_on_the_label_expected_to_move_most_is_asked_for(num_dimensions):
    rng = np.random.default_rng(3)
    features_ND, labels_N = blobs((20, 20, 20), spread=2.0)
    features_ND = features_ND @ rng.normal(size=(6, num_dimensions)).astype(np.float32)
    features_ND += rng.normal(size=features_ND.shape).astype(np.float32)
    labelled = list(range(30))
    chooser = taught(features_ND, labels_N, labelled)
    for _ in range(3):
        gains = slow_changes(chooser, features_ND, labelled, labels_N[labelled])
        row = chooser.next_row(())
        assert row == max(gains, key=gains.get)
        labelled.append(row)
        chooser.set_labels([row], int(labels_N[row]))


@pytest.mark.parametrize("are_groups", [False, True])
def test_a_guess_is_that_of_refits_with_a_fitted_temperature(are_groups):
    features_ND, labels_N = blobs((8, 8, 8), spread=2.5)
    groups_N = np.arange(24) // 2 if are_groups else np.arange(24)
    rows = np.arange(14)
    chooser = taught(features_ND, labels_N, rows, groups_N if are_groups else None)

    classes_K, chances_K = chooser.guess(20)

    expected_K = slow_probabilities(features_ND, labels_N[rows], rows, 20, groups_N[rows])
    assert np.allclose(chances_K, sorted(expected_K, reverse=True), atol=1e-5)
    assert (classes_K == np.argsort(-expected_K)).all()


def test_every_row_comes_once_and_never_one_left_out():
    features_ND, labels_N = blobs((7, 7))
    chooser, shown = Chooser(features_ND, None), []
    while (row := chooser.next_row({3, 4})) is not None:
        shown.append(row)
        chooser.set_labels([row], int(labels_N[row]))

    assert sorted(shown) == sorted(set(range(14)) - {3, 4})
    assert chooser.next_row(()) in {3, 4}


def test_one_of_a_group_is_shown_and_none_beside_a_label_or_one_left_out():
    features_ND, labels_N = blobs((8, 8))
    groups_N = np.arange(16) // 4 + 7
    chooser, shown = Chooser(features_ND, groups_N), []
    while (row := chooser.next_row([5])) is not None:
        shown.append(row)
        chooser.set_labels([row], int(labels_N[row]))

    assert sorted(row // 4 for row in shown) == [0, 2, 3]


def test_a_label_taken_back_leaves_no_trace():
    features_ND, labels_N = blobs((20, 20, 20), spread=2.0)
    rows = list(range(12))
    never = taught(features_ND, labels_N, rows)
    undone = Chooser(features_ND, None)
    for row in [*reversed(rows), 30, 31]:  # in another order, asked in between, one wrong and put right
        undone.set_labels([row], 1)
        undone.next_row(())
        undone.set_labels([row], int(labels_N[row]))
        undone.guess(50)
    undone.set_labels([30, 31], None)

    assert undone.next_row(()) == never.next_row(())
    assert np.array_equal(undone.guess(40)[1], never.guess(40)[1])
    assert undone.reasons(40) == never.reasons(40)
    assert undone.suspects() == never.suspects()


def test_the_seed_decides_and_nothing_else():
    features_ND = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)
    ones = [Chooser(np.ones_like(features_ND), None, seed=seed).next_row(()) for seed in (0, 0, 1, 2, 3)]

    assert ones[0] == ones[1]
    assert len(set(ones)) > 1  # of equal images the first in an order of the seed's
    assert Chooser(features_ND, None).next_row(()) == Chooser(features_ND, None).next_row(())


def test_only_some_rows_of_a_large_pool_are_compared(monkeypatch):
    features_ND, _ = blobs((50, 50))
    monkeypatch.setattr(choosing, "MOST_CANDIDATES", 5)
    chooser = Chooser(features_ND, None)
    firsts = [row for row in range(100) if chooser.next_row(set(range(100)) - {row}) == row]
    shown = []
    while len(shown) < 30:
        shown.append(chooser.next_row(()))
        chooser.set_labels([shown[-1]], 0)

    assert firsts == list(range(100))  # each has its turn
    assert len(set(shown)) == 30


def test_without_a_label_or_with_one_class_there_is_little_to_guess():
    features_ND, _ = blobs((4, 4))
    chooser = Chooser(features_ND, None)
    assert [values.tolist() for values in chooser.guess(0)] == [[], []]
    assert chooser.reasons(0) == [] and chooser.suspects() == []

    chooser.set_labels([1], 2)
    assert [values.tolist() for values in chooser.guess(0)] == [[2], [1.0]]
    assert chooser.reasons(0) == [] and chooser.suspects() == []
    assert chooser.next_row(()) not in {None, 1}


def test_classes_grow_and_may_leave_numbers_out():
    features_ND, labels_N = blobs((10, 10, 10), spread=0.3)
    chooser = taught(features_ND, labels_N, np.flatnonzero(labels_N < 2)[:12])
    assert set(chooser.guess(29)[0]) == {0, 1}
    newcomers = np.flatnonzero(labels_N == 2)
    chooser.set_labels(newcomers[:4], 5)

    classes_K, chances_K = chooser.guess(int(newcomers[-1]))
    assert classes_K[0] == 5 and set(classes_K) == {0, 1, 5}
    assert chances_K[0] > 0.8 and np.isclose(chances_K.sum(), 1)


def test_a_class_seen_once_makes_guesses_less_confident():
    features_ND, labels_N = blobs((10, 10, 10), spread=0.3)
    pairs = np.concatenate([np.flatnonzero(labels_N == k)[:3] for k in (0, 1)])
    chooser = taught(features_ND, labels_N, pairs)
    row = int(np.flatnonzero(labels_N == 0)[-1])
    confident = chooser.guess(row)[1][0]
    chooser.set_labels(np.flatnonzero(labels_N == 2)[:1], 2)

    assert chooser.guess(row)[1][0] < confident


def test_reasons_are_the_rows_whose_refit_costs_most_of_the_lead():
    features_ND, labels_N = blobs((8, 8, 8), spread=2.0)
    groups_N = np.arange(24) // 2
    rows = list(range(16))
    chooser = taught(features_ND, labels_N, rows, groups_N)
    fit = chooser._fit()
    inputs_NE, (l2,) = fit.solution.inputs(features_ND), fit.solution.l2
    targets_NK = 2.0 * (labels_N[:, None] == np.arange(3)) - 1

    def lead(kept: list[int]) -> float:
        x, y = inputs_NE[kept], targets_NK[kept]
        scores_K = inputs_NE[20] @ np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
        best, second = chooser.guess(20)[0][:2]
        return scores_K[best] - scores_K[second]

    loss = {g: lead(rows) - lead([row for row in rows if groups_N[row] != g]) for g in range(8)}
    expected = [g for g in sorted(loss, key=loss.get, reverse=True) if loss[g] > 0]
    assert [groups_N[row] for row in chooser.reasons(20, count=24)] == expected
    assert [groups_N[row] for row in chooser.reasons(20)] == expected[:3]


def test_a_planted_wrong_label_is_the_first_suspect_and_goes_when_repaired():
    features_ND, labels_N = blobs((15, 15, 15), spread=0.5)
    chooser = taught(features_ND, labels_N + 3, range(45))  # classes 3, 4, 5
    assert chooser.suspects() == []
    wrong = int(np.flatnonzero(labels_N == 1)[0])
    chooser.set_labels([wrong], 5)

    ((row, other, chance),) = chooser.suspects()
    assert (row, other) == (wrong, 4) and chance < 0.1
    chooser.set_labels([wrong], 4)
    assert chooser.suspects() == []


def test_a_wrong_label_of_a_group_is_listed_once():
    features_ND, labels_N = blobs((15, 15, 15), spread=0.5)
    first = int(np.flatnonzero(labels_N == 1)[0])
    features_ND = np.concatenate([features_ND, features_ND[[first]] + 1e-3])
    groups_N = np.append(np.arange(45), first)
    chooser = taught(features_ND, np.append(labels_N, 1), range(46), groups_N)
    chooser.set_labels([first, 45], 2)  # the copy would support the wrong label, were it not of its group

    ((row, other, _),) = chooser.suspects()
    assert row in {first, 45} and other == 1
