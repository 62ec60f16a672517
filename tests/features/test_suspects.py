"""Probabilities of labels against brute-force refits and a general optimiser; planted labels are found."""

from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from tests.conftest import REPOSITORY, run
from vitcli.errors import DataError
from vitcli.features import label_errors
from vitcli.features.label_errors import find_suspects, log_probabilities, nearest_rows
from vitcli.features.least_squares import BIAS, left_out_scores, solve

PRIOR = 50.0  # images that the ideal mean of a class counts as, for one that has few


def blobs(rng: np.random.Generator, sizes: tuple[int, ...], width: int, spread: float = 1.0):
    """Return Gaussian classes of these sizes around random centres, rows shuffled."""
    labels_N = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres_KD = rng.normal(0, 1, (len(sizes), width))
    return centres_KD[labels_N] + rng.normal(0, spread, (len(labels_N), width)), labels_N


def refitted_scores(features_ND: np.ndarray, labels_N: np.ndarray, l2: float, num_classes: int) -> np.ndarray:
    """Solve the closed form once for every row that is left out, with the standardisation of all rows."""
    scaled_ND = (features_ND - features_ND.mean(axis=0)) / (features_ND.std(axis=0) + 1e-5)
    inputs_NE = np.hstack([scaled_ND, np.full((len(scaled_ND), 1), BIAS)])
    targets_NK = 2.0 * (labels_N[:, None] == np.arange(num_classes)) - 1
    scores = []
    for row in range(len(labels_N)):
        x_ME, y_MK = np.delete(inputs_NE, row, axis=0), np.delete(targets_NK, row, axis=0)
        weights_EK = np.linalg.solve(x_ME.T @ x_ME + l2 * np.eye(x_ME.shape[1]), x_ME.T @ y_MK)
        scores.append(inputs_NE[row] @ weights_EK)
    return np.array(scores)


def slow_log_probabilities(scores_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Write out the Gaussian classes, and find the temperature by a general optimiser."""
    num_rows, num_classes = scores_NK.shape
    means = {k: scores_NK[labels_N == k].mean(axis=0) for k in np.unique(labels_N)}
    own = np.mean([means[k][k] for k in means])
    other = np.mean([means[k][j] for k in means for j in range(num_classes) if j != k])
    distances_NK = np.empty_like(scores_NK)
    for k in range(num_classes):
        ideal = np.array([own if j == k else other for j in range(num_classes)])
        count = (labels_N == k).sum()
        centre = (count * means.get(k, 0) + PRIOR * ideal) / (count + PRIOR)
        distances_NK[:, k] = np.square(scores_NK - centre).sum(axis=1) / 2
    spread = 1 / (num_rows + 2)  # Platt's targets
    targets_NK = (1 - spread) * (labels_N[:, None] == np.arange(num_classes)) + spread / num_classes

    def log_p(log_t: float) -> np.ndarray:
        logits_NK = -np.exp(log_t) * distances_NK
        return logits_NK - logsumexp(logits_NK, axis=1, keepdims=True)

    best = minimize_scalar(
        lambda log_t: -(targets_NK * log_p(log_t)).mean(), bounds=(-7, 7), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    return log_p(best.x)


def test_scores_are_those_of_a_refit_without_the_row():
    rng, num_rows = np.random.default_rng(0), 0
    for _ in range(50):
        sizes, width = tuple(rng.integers(1, 14, rng.integers(2, 6))), int(rng.integers(2, 40))
        features_ND, labels_N = blobs(rng, sizes, width)
        l2 = 2.0 ** rng.integers(0, 8)
        solution = solve(features_ND, labels_N, num_classes=len(sizes), l2=(l2 / 4, l2), groups_N=None)
        refitted_NK = refitted_scores(features_ND, labels_N, l2, len(sizes))

        np.testing.assert_allclose(left_out_scores(solution, 1), refitted_NK, rtol=1e-9, atol=1e-9)
        num_rows += len(labels_N)
    assert num_rows > 1000


def test_probabilities_are_those_of_gaussian_classes_around_their_mean_scores():
    rng = np.random.default_rng(1)
    for sizes in ((30, 30), (4, 25, 60), (9, 9, 9, 9, 9), (20, 0, 30)):
        features_ND, labels_N = blobs(rng, sizes, 8, spread=1.5)
        scores_NK = refitted_scores(features_ND, labels_N, 16.0, len(sizes))
        by_hand_NK = slow_log_probabilities(scores_NK, labels_N)

        np.testing.assert_allclose(log_probabilities(scores_NK, labels_N), by_hand_NK, atol=1e-4)


def test_what_is_found_is_ordered_named_and_consistent():
    features_ND, labels_N = blobs(np.random.default_rng(2), (40, 50, 60, 1), 16, spread=0.7)
    planted = np.flatnonzero(labels_N == 0)[:4]
    labels_N[planted] = 2
    found = find_suspects(
        features_ND, labels_N, num_classes=5, groups_N=None
    )  # no row of class 4, one of class 3

    assert sorted(found.rows_N) == np.flatnonzero(labels_N != 3).tolist()
    assert {*planted} == {*found.rows_N[:4]} and found.num_named == (found.label_N < 0.05).sum() == 3
    assert (np.diff(found.label_N) >= 0).all() and (found.label_N + found.other_probability_N <= 1).all()
    assert (found.other_N[:4] == 0).all() and (found.other_N != labels_N[found.rows_N]).all()
    # The margin is that of the scores of a refit.
    refitted_NK = refitted_scores(features_ND, labels_N, found.l2, 5)[found.rows_N]
    own_N = np.take_along_axis(refitted_NK, labels_N[found.rows_N, None], axis=1)[:, 0]
    np.put_along_axis(refitted_NK, labels_N[found.rows_N, None], -np.inf, axis=1)
    np.testing.assert_allclose(found.margin_N, own_N - refitted_NK.max(axis=1), rtol=1e-6, atol=1e-9)
    hits = (refitted_NK.max(axis=1) < own_N).mean()
    assert found.top1 == pytest.approx(hits)


@pytest.mark.parametrize("num_planted", [5, 20])
def test_planted_labels_are_the_first_and_clean_ones_are_not_named(num_planted):
    rng = np.random.default_rng(3)
    features_ND, labels_N = blobs(rng, (40,) * 6, 48, spread=0.7)
    wrong_N = labels_N.copy()
    planted = rng.choice(len(labels_N), num_planted, replace=False)
    wrong_N[planted] = (labels_N[planted] + rng.integers(1, 6, num_planted)) % 6
    found = find_suspects(features_ND, wrong_N, num_classes=6, groups_N=None)

    assert {*found.rows_N[:num_planted]} == {*planted}
    assert num_planted - 1 <= found.num_named <= num_planted
    assert find_suspects(features_ND, labels_N, num_classes=6, groups_N=None).num_named == 0


@pytest.mark.parametrize("block", [1, 50, 2**24])
def test_neighbours_are_those_of_a_loop(monkeypatch, block):
    monkeypatch.setattr(label_errors, "MOST_SIMILARITIES", block)
    features_ND = np.random.default_rng(4).normal(0, 1, (30, 5)).astype(np.float32)
    unit_ND = features_ND.astype(float) / np.linalg.norm(features_ND.astype(float), axis=1)[:, None]
    rows = [7, 0, 29]

    for groups_N in (None, np.arange(30) // 3):
        groups = np.arange(30) if groups_N is None else groups_N
        found = nearest_rows(features_ND, rows, count=4, groups_N=groups_N)
        for row, nearest in zip(rows, found, strict=True):
            others = np.flatnonzero(groups != groups[row])
            assert nearest.tolist() == sorted(others, key=lambda other: -unit_ND[row] @ unit_ND[other])[:4]
    assert nearest_rows(features_ND[:3], [1], count=9, groups_N=None).shape == (1, 2)
    assert nearest_rows(features_ND[:3], [2], count=9, groups_N=np.array([4, 4, 7])).shape == (1, 1)
    assert nearest_rows(features_ND, [], count=4, groups_N=None).shape == (0, 4)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [2, 2]])
def test_labels_that_say_nothing_of_each_other_are_refused(labels):
    features_ND = np.random.default_rng(5).normal(0, 1, (len(labels), 3))

    with pytest.raises(DataError, match="say nothing about a label"):
        find_suspects(features_ND, np.array(labels), num_classes=4, groups_N=None)


def test_images_of_a_group_say_nothing_about_each_others_labels():
    """Three near copies of each image: a wrong label is vouched for by copies that stay in."""
    rng = np.random.default_rng(6)
    features_ND, labels_N = blobs(rng, (20,) * 4, 48, spread=0.7)
    planted = np.array([3, 30, 50])
    labels_N[planted] = (labels_N[planted] + 1) % 4
    copies_ND, copies_N, groups_N = features_ND.repeat(3, axis=0), labels_N.repeat(3), np.arange(80).repeat(3)
    copies_ND = copies_ND + rng.normal(0, 0.01, copies_ND.shape)

    alone = find_suspects(copies_ND, copies_N, num_classes=4, groups_N=None)
    grouped = find_suspects(copies_ND, copies_N, num_classes=4, groups_N=groups_N)

    assert {*groups_N[grouped.rows_N[:9]]} == {*planted} and grouped.num_named == 9
    assert alone.num_named == 0 and alone.top1 > 0.98 > grouped.top1
    with pytest.raises(DataError, match="of one group each say nothing about a label"):
        find_suspects(copies_ND, copies_N, num_classes=4, groups_N=copies_N)


@pytest.fixture
def planting():
    """The script that plants wrong labels: benchmarks/wrong_labels.py."""
    spec = spec_from_file_location("wrong_labels", REPOSITORY / "benchmarks/wrong_labels.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def real_features(shared, tmp_path, dataset: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    ckpt, out = shared / "data/checkpoints/vit_ti16_augreg_in1k.safetensors", tmp_path / "f.safetensors"
    words = ("--ckpt", ckpt, "--dataset", shared / "data" / dataset, "--split", split, "--no-logits")
    assert run("embed", *words, "--out", out, "-q").code == 0
    tensors = load_file(out)
    return tensors["features"], tensors["labels"]


@pytest.mark.slow
def test_wrong_labels_of_real_photographs_are_the_first(shared, tmp_path, planting):
    features_ND, labels_N = real_features(shared, tmp_path, "flowers17", "train")
    clean = find_suspects(features_ND, labels_N, num_classes=17, groups_N=None)

    assert clean.num_named <= 10
    for hardest, least in ((False, 0.98), (True, 0.94)):
        for count in (10, 34, 65):
            about = dict(count=count, draws=20, hardest=hardest, cleanlab=False)
            results = planting.recalls(features_ND, labels_N, **about)
            assert np.mean(results["vit"]) >= least, (hardest, count)
            # At most one in twenty of the named ones has the right label, and the rest takes no time.
            assert np.sum(results["named_planted"]) >= 0.95 * np.sum(results["named"])
            assert max(results["elapsed_s"]) < 2


@pytest.mark.slow
def test_wrong_labels_of_small_images_are_found_as_often_as_by_cleanlab(shared, tmp_path, planting):
    pytest.importorskip("cleanlab")
    features_ND, labels_N = real_features(shared, tmp_path, "cifar10", "train[:2000]")
    results = planting.recalls(features_ND, labels_N, count=100, draws=20, hardest=False, cleanlab=True)

    theirs = [np.mean(results[name]) for name in results if name.startswith("cleanlab")]
    assert np.mean(results["vit"]) >= max(theirs) > 0.7


@pytest.mark.parametrize(("top1", "named"), [(0.8, 1), (0.79, 0)])
def test_features_that_know_fewer_than_four_in_five_images_name_no_label(top1, named):
    scores_NK = 2.0 * np.eye(3)[np.arange(60) % 3] - 1
    labels_N = np.arange(60) % 3
    labels_N[7] = 2  # it looks like all of class 1

    judged = label_errors.by_left_out_scores(np.arange(60), scores_NK, labels_N, l2=1.0, top1=top1)
    assert (judged.rows_N[0], judged.other_N[0], judged.num_named) == (7, 1, named)


@pytest.mark.parametrize(("top1", "are_named"), [(0.8, True), (0.79, False)])
def test_a_label_is_named_below_five_percent_by_features_that_know_the_classes(top1, are_named):
    labels_N = np.arange(200) % 2
    scores_NK = np.random.default_rng(0).normal(size=(200, 2)) + 1.5 * np.eye(2)[labels_N]

    found = label_errors.by_left_out_scores(np.arange(200), scores_NK, labels_N, l2=1.0, top1=top1)

    assert found.num_named == (found.label_N < 0.05).sum() * are_named
    assert ((found.label_N >= 0.05) & (found.label_N < 0.1)).any() and found.label_N[0] < 0.05
    assert (np.diff(found.label_N) >= 0).all() and (found.l2, found.top1) == (1.0, top1)
