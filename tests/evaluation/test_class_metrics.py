"""Metrics per class against scikit-learn's, with ties, absent classes and ones that are never predicted."""

import numpy as np
import pytest

from vitcli.evaluation import class_metrics
from vitcli.evaluation.assertions import OF_CLASSES
from vitcli.evaluation.class_metrics import class_scores, one_against_rest

CASES = {
    "plain": dict(num_rows=200, num_classes=5),
    "ties": dict(num_rows=300, num_classes=4, levels=4),
    "absent": dict(num_rows=60, num_classes=12, absent=(0, 3, 11)),
    "many": dict(num_rows=400, num_classes=150, levels=50),
    "two": dict(num_rows=30, num_classes=2),
}


def problem(num_rows: int, num_classes: int, levels: int = 0, absent: tuple[int, ...] = ()):
    rng = np.random.default_rng(num_rows)
    present = np.setdiff1d(np.arange(num_classes), absent)
    labels = rng.choice(present, num_rows, p=rng.dirichlet(np.ones(len(present))))
    scores = rng.normal(0, 1, (num_rows, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    if levels:
        scores = np.round(scores * levels / 4)
    return labels, scores.argmax(axis=1), scores.astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_all_are_scikit_learn_s(case, monkeypatch):
    metrics = pytest.importorskip("sklearn.metrics")
    labels, predicted, scores = problem(**CASES[case])
    monkeypatch.setattr(class_metrics, "COLUMNS_AT_ONCE", 7)
    found = class_scores(labels, predicted, scores)
    means, present = found.means(), np.unique(labels)

    assert found.classes_C.tolist() == present.tolist()
    for average in ("macro", "weighted"):
        expected = metrics.precision_recall_fscore_support(
            labels, predicted, labels=present, average=average, zero_division=0
        )
        for name, value in zip(("precision", "recall", "f1"), expected, strict=False):
            assert means[f"{name}_{average}"] == pytest.approx(value, rel=1e-12)
    of_each = metrics.precision_recall_fscore_support(labels, predicted, labels=present, zero_division=0)
    for ours, theirs in zip((found.precision_C, found.recall_C, found.f1_C), of_each, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    with np.errstate(all="ignore"):
        assert means["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    auroc = [metrics.roc_auc_score(labels == label, scores[:, label]) for label in present]
    aupr = [metrics.average_precision_score(labels == label, scores[:, label]) for label in present]
    np.testing.assert_allclose(found.auroc_C, auroc, rtol=1e-12)
    np.testing.assert_allclose(found.aupr_C, aupr, rtol=1e-12)
    assert means["auroc_macro"] == pytest.approx(np.mean(auroc))
    assert means["aupr_macro"] == pytest.approx(np.mean(aupr))


def test_four_rows_by_hand():
    # Rows of class 0 have the scores 3 and 1, the others 2 and 1: 3 > 2, 3 > 1, 1 < 2, 1 = 1 are 2.5 of 4.
    # Precision is 1 of 1 at the score 3, and 2 of 4 at the score 1.
    scores, is_first = np.array([3.0, 1.0, 2.0, 1.0]), np.array([True, True, False, False])

    assert one_against_rest(scores, is_first) == (2.5 / 4, (1 + 2 / 4) / 2)


def test_a_single_class_has_no_curve_and_perfect_counts():
    found = class_scores(np.array([2, 2]), np.array([2, 2]), np.zeros((2, 4), dtype=np.float32))
    means = found.means()

    assert set(means) == set(OF_CLASSES)
    assert (means["f1_macro"], means["balanced_accuracy"]) == (1.0, 1.0)
    assert means["auroc_macro"] is None and means["aupr_macro"] is None
    assert found.of_class(0) == {"precision": 1.0, "f1": 1.0, "auroc": None, "aupr": None}


def test_without_scores_there_are_no_curves_and_a_class_never_predicted_has_precision_0():
    found = class_scores(np.array([0, 0, 1]), np.array([0, 3, 0]), None)

    assert found.precision_C.tolist() == [0.5, 0] and found.recall_C.tolist() == [0.5, 0]
    assert found.f1_C.tolist() == [0.5, 0]
    assert found.means()["auroc_macro"] is None and found.of_class(1)["aupr"] is None
