"""Few-shot scores as the command computes them: the golden evaluator, classifiers against other solvers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import SHARED
from vitcli.errors import DataError, VitError
from vitcli.features import classifiers, least_squares
from vitcli.features import draws as features_draws
from vitcli.features.draws import FewshotProblem, mean_and_std
from vitcli.features.feature_store import StoredFeatures, open_beside

GOLDEN = SHARED / "golden"
ABOUT = json.loads((GOLDEN / "fewshot.json").read_text()) if (GOLDEN / "fewshot.json").is_file() else {}
needs_golden = pytest.mark.skipif(not ABOUT, reason="the golden data (VIT_TEST_DATA) is not here")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The golden arrays, and their features in stores as the command has them."""
    with np.load(GOLDEN / "fewshot.npz") as arrays:
        arrays = dict(arrays)
    stores = {}
    for split in ("train", "test"):
        features, labels = arrays[f"{split}_features"], arrays[f"{split}_labels"]
        stores[split] = open_beside(tmp_path_factory.mktemp("golden") / split, {}, len(labels))
        for rows in np.array_split(np.random.default_rng(0).permutation(len(labels)), 7):
            stores[split].append(rows, labels[rows, None], features[rows], num_logits=0)
    return arrays, stores


def problem_of(arrays, stores) -> features_draws.FewshotProblem:
    rows = np.arange(len(arrays["test_labels"]))
    return features_draws.FewshotProblem(
        features_of=lambda rows: stores["train"].read(rows)["features"],
        labels_N=arrays["train_labels"],
        tests_TD=StoredFeatures(stores["test"], rows),
        test_labels_T=stores["test"].read(rows)["labels"][:, 0],
        num_classes=ABOUT["classes"],
    )


@pytest.mark.slow
@needs_golden
def test_the_evaluator_s_rows_and_every_accuracy(golden):
    arrays, stores = golden
    draws = features_draws.draw_support_sets(
        arrays["train_labels"], num_classes=ABOUT["classes"], shots=ABOUT["shots"], seeds=ABOUT["seeds"]
    )

    for (seed, shots), rows in {(s, k): rows for s, of in draws.items() for k, rows in of.items()}.items():
        assert rows.tolist() == arrays[f"indices/seed{seed}_shots{shots}"].tolist()
    for place, l2 in enumerate(ABOUT["l2"]):
        found = features_draws.score_draws(
            problem_of(arrays, stores), draws, classifier="least-squares", l2=l2
        )
        top1 = [[scored.top1 for scored in found[shots]] for shots in ABOUT["shots"]]
        assert np.array(top1).T.tolist() == arrays["accuracy_float64"][:, :, place].tolist(), l2


@needs_golden
def test_the_evaluator_s_predictions(golden):
    arrays, stores = golden
    problem, seed = problem_of(arrays, stores), ABOUT["seeds"][0]
    for shots in ABOUT["shots"]:
        rows = arrays[f"indices/seed{seed}_shots{shots}"]
        solution = least_squares.solve(
            problem.features_of(rows),
            problem.labels_N[rows],
            num_classes=problem.num_classes,
            l2=[ABOUT["default_l2"]],
            groups_N=None,
        )
        ours = (solution.inputs(problem.tests_TD[:]) @ solution.weights(0)).argmax(axis=1)
        theirs = arrays[f"scores_default_l2/seed{seed}_shots{shots}"].argmax(axis=1)
        assert ours.tolist() == theirs.tolist()


@needs_golden
def test_the_sweep_never_looks_at_a_test_row_and_says_what_it_took(golden):
    arrays, stores = golden
    problem = problem_of(arrays, stores)
    draws = features_draws.draw_support_sets(
        arrays["train_labels"], num_classes=ABOUT["classes"], shots=[1, 5], seeds=[0]
    )
    found = features_draws.score_draws(problem, draws, classifier="least-squares", l2="sweep")

    rows = draws[0][5]
    solution = least_squares.solve(
        problem.features_of(rows),
        problem.labels_N[rows],
        num_classes=ABOUT["classes"],
        l2=least_squares.SWEEP,
        groups_N=None,
    )
    best = least_squares.SWEEP[least_squares.choose_l2(solution)]
    assert found[5][0].chosen == best
    assert found[1][0].chosen == 1024.0  # no image can be left out
    assert (least_squares.SWEEP[0], least_squares.SWEEP[-1], len(least_squares.SWEEP)) == (
        2.0**-10,
        2.0**19,
        30,
    )


def clusters(count: int, num_classes: int = 4, width: int = 6, noise: float = 1.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(0, 1, (num_classes, width))
    labels = np.arange(count) % num_classes
    return (1 + centres[labels] + rng.normal(0, noise, (count, width))).astype(np.float32), labels


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.slow
def test_neighbours_vote_as_in_scikit_learn(monkeypatch, count):
    neighbors = pytest.importorskip("sklearn.neighbors")
    known, labels = clusters(60)
    tests, _ = clusters(300, seed=1)
    monkeypatch.setattr(classifiers, "NEIGHBOURS", (count,))

    ours, chosen = classifiers.nearest_neighbours(known, labels, tests, num_classes=4, groups_N=None)

    theirs = neighbors.KNeighborsClassifier(count, metric="cosine", algorithm="brute").fit(known, labels)
    votes = np.sort(theirs.predict_proba(tests), axis=1)
    is_clear = votes[:, -1] > votes[:, -2]  # scikit-learn gives equal votes to the lower class
    assert chosen == count and is_clear.sum() > 200
    assert (ours == theirs.predict(tests))[is_clear].all()


def test_equal_votes_go_to_the_nearer_neighbours():
    known = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]])
    tests = np.array([[0.2, 1.0]])  # nearest: rows 2, 3, 1, 0

    votes = classifiers._votes(
        classifiers._unit(known),
        np.array([0, 0, 1, 0]),
        tests,
        [1, 2, 3],
        num_classes=2,
        left_out_N=None,
    )

    assert {count: found.tolist() for count, found in votes.items()} == {1: [1], 2: [1], 3: [0]}


@pytest.mark.parametrize("size_of_groups", [1, 3])
def test_the_number_of_neighbours_is_chosen_by_leaving_each_row_or_group_out(size_of_groups):
    known, labels = clusters(80, noise=2.0)
    groups = np.arange(80) // size_of_groups
    unit = classifiers._unit(known)
    right = {}
    for count in classifiers.NEIGHBOURS:
        hits = 0
        for row in range(len(labels)):
            others = groups != groups[row]
            near = unit[others] @ unit[row]
            nearest = np.argsort(-near, kind="stable")[:count]
            votes = [
                (sum(labels[others][nearest] == k), sum(near[nearest][labels[others][nearest] == k]))
                for k in range(4)
            ]
            hits += max(range(4), key=lambda k: votes[k]) == labels[row]
        right[count] = hits

    about = {"num_classes": 4, "groups_N": None if size_of_groups == 1 else groups}
    _, chosen = classifiers.nearest_neighbours(known, labels, known, **about)

    assert chosen == max(right, key=lambda count: (right[count], -count)) and len(set(right.values())) > 2


def test_a_neighbour_of_the_own_group_has_no_vote_where_there_are_too_few_others():
    unit = classifiers._unit(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]))
    labels, groups = np.array([1, 0, 0, 1]), np.array([5, 5, 5, 6])

    votes = classifiers._votes(unit, labels, unit, [3], num_classes=2, left_out_N=groups)

    assert votes[3].tolist() == [1, 1, 1, 0]  # the only other row, and the three other rows


@pytest.mark.parametrize(("classifier", "l2"), [("least-squares", "sweep"), ("knn", 1.0)])
def test_what_a_draw_chooses_is_chosen_by_leaving_its_groups_out(classifier, l2):
    """Rows that stand there five times: alone they are recognised by their copies."""
    once, labels = clusters(40, noise=3.0)
    rows, groups = np.arange(40).repeat(5), np.arange(1000, 1040).repeat(5)
    problem = FewshotProblem(
        lambda drawn: once[rows[drawn]], labels[rows], once, labels, num_classes=4, groups_N=groups
    )
    drawn = np.random.default_rng(0).permutation(200)[:150]

    def chosen(problem: FewshotProblem) -> float:
        scores = features_draws.score_draws(problem, {0: {50: drawn}}, classifier=classifier, l2=l2)
        return scores[50][0].chosen

    about = {"num_classes": 4, "groups_N": groups[drawn]}
    features = once[rows[drawn]], labels[rows[drawn]]
    if classifier == "knn":
        expected = classifiers.nearest_neighbours(*features, once, **about)[1]
    else:
        solution = least_squares.solve(*features, l2=least_squares.SWEEP, **about)
        expected = least_squares.SWEEP[least_squares.choose_l2(solution)]
    assert chosen(problem) == expected != chosen(replace(problem, groups_N=None))


@pytest.mark.parametrize("name", ["nearest_neighbours", "nearest_mean", "logistic"])
def test_parts_of_the_tests_make_no_difference(monkeypatch, name):
    if name == "logistic":
        pytest.importorskip("sklearn")
    known, labels = clusters(40)
    tests, _ = clusters(101, seed=1)
    whole = getattr(classifiers, name)(known, labels, tests, num_classes=4, groups_N=None)
    monkeypatch.setattr(least_squares, "CHUNK_VALUES", 7 * 40)
    in_parts = getattr(classifiers, name)(known, labels, tests, num_classes=4, groups_N=None)

    assert whole[1] == in_parts[1] and whole[0].tolist() == in_parts[0].tolist()


def test_the_nearest_mean_is_that_of_unit_features():
    known, labels = clusters(30)
    tests, _ = clusters(50, seed=1)
    unit = known / np.linalg.norm(known, axis=1, keepdims=True)
    means = np.array([unit[labels == k].mean(axis=0) for k in range(4)])
    cosines = [[m @ t / np.linalg.norm(m) / np.linalg.norm(t) for m in means] for t in tests.astype(float)]

    ours, _ = classifiers.nearest_mean(known, labels, tests, num_classes=5, groups_N=None)  # class 4 is empty
    away, _ = classifiers.nearest_mean(known, labels, -tests, num_classes=5, groups_N=None)

    assert ours.tolist() == np.argmax(cosines, axis=1).tolist()
    assert away.tolist() == np.argmin(cosines, axis=1).tolist()  # all cosines are below 0


def test_logistic_regression_is_scikit_learn_s_on_standardised_rows():
    linear_model = pytest.importorskip("sklearn.linear_model")
    known, labels = clusters(60, noise=2.0)
    tests, _ = clusters(200, seed=1)
    ours, strength = classifiers.logistic(known, labels, tests, num_classes=4, groups_N=None)

    mean, std = known.astype(float).mean(axis=0), known.astype(float).std(axis=0) + 1e-5
    theirs = linear_model.LogisticRegression(C=strength, max_iter=1000).fit((known - mean) / std, labels)
    assert strength in classifiers.STRENGTHS
    assert (ours == theirs.predict((tests - mean) / std)).mean() > 0.99


def test_held_out_rows_leave_each_class_some():
    labels = np.array([0] * 9 + [1] * 2 + [2])

    held = classifiers._held_out(labels, None)

    assert np.bincount(labels[held]).tolist() == [2, 1] and set(labels[~held]) == {0, 1, 2}
    assert not classifiers._held_out(np.arange(5), None).any()


def test_rows_that_a_logistic_regression_holds_out_are_whole_groups():
    rng = np.random.default_rng(1)
    labels, groups = rng.integers(0, 3, 90), rng.integers(0, 25, 90) * 7

    held = classifiers._held_out(labels, groups)

    assert not {*groups[held]} & {*groups[~held]} and set(labels[held]) == set(labels[~held]) == {0, 1, 2}
    assert 15 <= held.sum() <= 30
    assert not classifiers._held_out(labels, labels).any()  # each class is a group


def test_logistic_regression_without_scikit_learn_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(classifiers.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(VitError, match="scikit-learn") as told:
        classifiers.check_installed("logistic")

    assert "pip install" in told.value.fix
    classifiers.check_installed("knn")


def test_the_deviation_of_draws_is_that_of_a_sample():
    mean, std = mean_and_std([0.5, 0.7, 0.9])

    assert (mean, std) == (pytest.approx(0.7), pytest.approx(0.2))
    assert mean_and_std([0.5]) == (0.5, None)


def test_three_far_neighbours_outvote_two_near_ones():
    angles_N, labels_N = np.array([0.0, 0.1, 1.4, 1.45, 1.5]), np.array([0, 0, 1, 1, 1])
    points = np.stack([np.cos(angles_N), np.sin(angles_N)], axis=1)

    for length in (1, 1_000):  # of the test's features, which says nothing
        tests = length * points[:1]
        votes = classifiers._votes(points, labels_N, tests, [2, 5], num_classes=2, left_out_N=None)
        assert {count: classes.tolist() for count, classes in votes.items()} == {2: [0], 5: [1]}


def test_of_equally_near_rows_the_first_is_the_neighbour_and_of_equal_numbers_the_smallest_is_chosen():
    points = np.array([[1.0, 0.0], [0.0, 1.0]])[[0, 0, 0, *[1] * 30, *[0] * 30]]
    labels = np.array([1, 0, 0, *[1] * 30, *[0] * 30])
    about = {"num_classes": 2, "left_out_N": None}
    for first in range(3):
        order = np.roll(np.arange(3), first)
        votes = classifiers._votes(points[:3], labels[order], points[:1], [1], **about)
        assert votes[1].tolist() == [labels[order[0]]]

    # 30 rows each of two classes far apart: all numbers of neighbours have every row right.
    about = {"num_classes": 2, "groups_N": None}
    assert classifiers.nearest_neighbours(points[3:], labels[3:], points[3:], **about)[1] == 1


def test_a_logistic_regression_does_not_depend_on_the_numbers_of_the_classes():
    pytest.importorskip("sklearn")
    known, labels = clusters(60, num_classes=3, noise=3.0)
    tests, _ = clusters(50, num_classes=3, seed=1)

    found, chosen = classifiers.logistic(known, labels, tests, num_classes=3, groups_N=None)
    gaps = classifiers.logistic(known, 3 * labels + 1, tests, num_classes=9, groups_N=None)

    assert gaps[1] == chosen and gaps[0].tolist() == (3 * found + 1).tolist()
    assert chosen not in (1e-3, 100.0)


def test_rows_of_several_draws_are_read_once():
    draws = {5: {1: np.array([7, 2]), 2: np.array([7, 2, 0, 9])}, 6: {1: np.array([2, 3])}}

    assert features_draws.drawn_rows(draws).tolist() == [0, 2, 3, 7, 9]


def test_logistic_regression_of_one_class_says_that_class():
    known, tests = np.random.default_rng(0).normal(size=(5, 3)), np.ones((4, 3))

    found, strength = classifiers.logistic(known, np.full(5, 2), tests, num_classes=4, groups_N=None)
    assert found.tolist() == [2] * 4 and strength == 1.0


@pytest.mark.parametrize(("distance", "chosen"), [(8.0, {100.0}), (0.0, {1e-3, 1e-2})])
def test_classes_far_apart_need_no_regularisation_and_noise_all_there_is(distance, chosen):
    pytest.importorskip("sklearn")
    labels = np.arange(40) % 2
    known = np.random.default_rng(0).normal(size=(40, 6)) + distance * labels[:, None]

    assert classifiers.logistic(known, labels, known[:1], num_classes=2, groups_N=None)[1] in chosen


def test_the_sweep_has_every_power_of_two_of_the_authors():
    assert [np.log2(l2) for l2 in least_squares.SWEEP] == [*range(-10, 20)]


def test_a_draw_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "d.json").write_text('{"0": {"1": [0, 1], "01": [2, 3]}}')
    with pytest.raises(DataError, match="names seed 0, 01 shots twice"):
        features_draws.read_draws(str(tmp_path / "d.json"), np.array([0, 1, 0, 1]), ["a", "b"])

    (tmp_path / "d.json").write_text('{"0": {"1": [2, 3]}, "7": {"1": [0, 1]}}')
    found = features_draws.read_draws(str(tmp_path / "d.json"), np.array([0, 1, 0, 1]), ["a", "b"])
    assert features_draws.as_json(found) == {"0": {"1": [2, 3]}, "7": {"1": [0, 1]}}
    assert features_draws.drawn_rows(found).tolist() == [0, 1, 2, 3]


def test_where_each_class_is_one_group_the_authors_l2_is_taken():
    known, labels = clusters(20)
    problem = FewshotProblem(known.__getitem__, labels, known, labels, num_classes=4, groups_N=labels)

    scores = features_draws.score_draws(
        problem, {0: {5: np.arange(20)}}, classifier="least-squares", l2="sweep"
    )
    assert scores[5][0].chosen == 1024.0
