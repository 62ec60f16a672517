"""What follows from logits, row by row, against hand values and scikit-learn."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.nn import functional

from vitcli.evaluation import inference, metrics, predictions
from vitcli.evaluation.predictions import Predictions


def of_logits(logits_NK: torch.Tensor, labels: torch.Tensor) -> Predictions:
    columns = {
        name: values.numpy()
        for name, values in inference.prediction_columns(logits_NK.float(), labels).items()
    }
    scores = {name: columns.pop(name) for name in metrics.EXAMPLE_SCORES}
    rows_N = np.arange(len(logits_NK))
    return Predictions(rows_N=rows_N, labels=labels.numpy(), example_scores=scores, **columns)


def random_case(num_classes: int, count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(num_classes)
    return 2 * torch.randn(count, num_classes, generator=rng), torch.randint(
        num_classes, (count,), generator=rng
    )


def test_two_rows_by_hand():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64)

    results = of_logits(probabilities.log(), torch.tensor([0, 1]))

    assert results.ranks_N.tolist() == [0, 1]
    assert results.classes_NT.tolist() == [[0, 1, 2], [2, 1, 0]]
    assert results.probabilities_NT.tolist() == [
        pytest.approx([0.5, 0.25, 0.25]),
        pytest.approx([0.7, 0.2, 0.1]),
    ]
    assert results.losses_N == pytest.approx(-np.log([0.5, 0.2]))
    assert results.example_scores["brier"] == pytest.approx([0.25 + 2 * 0.0625, 0.01 + 0.64 + 0.49])


def test_of_equal_logits_the_lower_class_comes_first_so_a_hit_is_rank_zero():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.integers(-2, 2, (500, 12)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 12, 500))

    results = of_logits(logits, labels)

    assert ((results.classes_NT[:, 0] == results.labels) == results.is_right_N).all()
    assert ((results.classes_NT == results.labels[:, None]).any(axis=1) == (results.ranks_N < 5)).all()


@pytest.mark.parametrize(("num_classes", "count"), [(3, 70), (1_000, 300), (21_843, 30)])
@pytest.mark.parametrize("several", [False, True])
def test_columns_are_those_of_the_plain_formulas_bit_for_bit(num_classes, count, several):
    logits_NK, labels = random_case(num_classes, count)
    logits_NK[::2] = logits_NK[::2].round()  # with ties
    labels = torch.stack([labels, (labels + 1) % num_classes], dim=1) if several else labels
    columns = inference.prediction_columns(logits_NK, labels, has_scores=True)

    exact_NK = logits_NK.double()
    probabilities_NK, log_p_NK = exact_NK.softmax(dim=1), exact_NK.log_softmax(dim=1)
    order_NK = logits_NK.argsort(dim=1, descending=True, stable=True)
    right_NMK = functional.one_hot(labels.reshape(count, -1), num_classes).double()
    targets_NK = right_NMK.mean(dim=1)
    places_NM = (order_NK[:, None] == labels.reshape(count, -1, 1)).double().argmax(dim=2)
    losses_NM = -log_p_NK.gather(1, labels.reshape(count, -1))
    assert torch.equal(columns["classes_NT"], order_NK[:, :5])
    assert torch.equal(columns["probabilities_NT"], probabilities_NK.gather(1, order_NK[:, :5]))
    assert torch.equal(columns["ranks_N"], places_NM.min(dim=1).values)
    assert torch.equal(columns["losses_N"], losses_NM.mean(dim=1))
    assert torch.equal(columns["brier"], (probabilities_NK - targets_NK).square().sum(dim=1))
    assert torch.equal(columns["scores_NK"], log_p_NK.float())


@pytest.mark.parametrize("num_classes", [2, 5, 40])
def test_totals_are_those_of_scikit_learn(num_classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = random_case(num_classes)
    probabilities = logits.double().softmax(dim=1).numpy()
    classes = list(range(num_classes))

    results = of_logits(logits, labels)

    totals = metrics.metrics_of(torch.from_numpy(results.ranks_N), torch.from_numpy(results.losses_N))
    assert totals.top1 == sklearn.accuracy_score(labels, probabilities.argmax(axis=1))
    assert totals.loss == pytest.approx(sklearn.log_loss(labels, probabilities, labels=classes), rel=1e-12)
    onehot = np.eye(num_classes)[labels]
    brier = ((probabilities - onehot) ** 2).sum(axis=1).mean()
    assert results.example_scores["brier"].mean() == pytest.approx(brier, rel=1e-12)
    if num_classes > 5:
        assert totals.top5 == sklearn.top_k_accuracy_score(labels, probabilities, k=5, labels=classes)


@pytest.mark.parametrize("num_classes", [3, 17])
def test_per_class_and_confusion_are_those_of_scikit_learn(num_classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = random_case(num_classes)
    names = tuple(f"class {number}" for number in range(num_classes))

    results = of_logits(logits, labels)

    theirs = sklearn.confusion_matrix(labels, logits.argmax(dim=1), labels=range(num_classes))
    ours = np.zeros_like(theirs)
    label, predicted, count = predictions.confusion(results, num_classes)
    ours[label, predicted] = count
    assert (ours == theirs).all() and (count > 0).all()
    recalls = sklearn.recall_score(labels, logits.argmax(dim=1), average=None)
    per_class = predictions.per_class(predictions.scores_of_classes(results), names)
    assert [one["top1"] for one in per_class.values()] == pytest.approx(list(recalls))
    assert [one["num_examples"] for one in per_class.values()] == theirs.sum(axis=1).tolist()


def test_totals_are_those_of_torchmetrics():
    pytest.importorskip("torchmetrics")
    from torchmetrics.functional.classification import multiclass_accuracy

    logits, labels = random_case(20)
    results = of_logits(logits, labels)

    for k in (1, 5):
        theirs = multiclass_accuracy(logits, labels, num_classes=20, top_k=k, average="micro")
        assert (results.ranks_N < k).mean() == pytest.approx(float(theirs))


def test_a_class_without_examples_is_not_listed():
    results = of_logits(torch.eye(4)[:2], torch.tensor([0, 3]))

    found = predictions.per_class(predictions.scores_of_classes(results), ("a", "b", "c", "d"))
    of_scores = {"auroc": None, "aupr": None}  # which are not kept here
    assert found == {
        "a": {"top1": 1.0, "num_examples": 1, "precision": 1.0, "f1": 1.0, **of_scores},
        "d": {"top1": 0.0, "num_examples": 1, "precision": 0.0, "f1": 0.0, **of_scores},
    }


def test_the_most_confident_mistakes_come_first_and_nothing_right_among_them():
    logits = torch.tensor([[3.0, 0, 0], [0, 9, 0], [0, 1, 0], [5, 0, 0], [0, 0, 5]])
    results = of_logits(logits, torch.tensor([0, 0, 0, 1, 1]))

    assert predictions.most_confident_mistakes(results, 3).tolist() == [1, 3, 4]  # equally sure: in row order
    assert predictions.most_confident_mistakes(results, 10).tolist() == [1, 3, 4, 2]


def test_several_labels_divide_the_target():
    probabilities = torch.tensor([[0.5, 0.5, 0.0 + 1e-30]], dtype=torch.float64)

    results = of_logits(probabilities.log(), torch.tensor([[0, 1, -1]]))

    assert results.is_multilabel and results.is_right_N.all()
    assert results.example_scores["brier"] == pytest.approx([0.0])


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_of_no_rows_has_no_numbers(several):
    results = inference.prediction_columns(
        torch.zeros(0, 7), torch.zeros((0, 2) if several else 0, dtype=torch.int64)
    )

    assert {name: len(values) for name, values in results.items()} == dict.fromkeys(results, 0)
    names = {field.name for field in fields(Predictions)}
    columns = results.keys() - metrics.EXAMPLE_SCORES
    assert columns | {"rows_N", "labels", "scores_NK", "logits_NK", "example_scores"} == names
