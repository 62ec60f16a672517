"""Counts and losses of an evaluation, against a sort, a sum and values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from vitcli.evaluation.metrics import example_losses, label_ranks, metrics_of, top_classes


def log_probabilities(logits_BK: torch.Tensor) -> torch.Tensor:
    return logits_BK.double().log_softmax(dim=1)


def test_of_several_right_classes_the_highest_ranked_counts():
    logits_BK = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.1, 0.9, 0.5, 0.3], [0.0, 0.0, 0.0, 0.0]])
    labels_BM = torch.tensor([[0, 2, -1], [1, -1, -1], [3, 1, 2]])

    assert label_ranks(logits_BK, labels_BM).tolist() == [1, 0, 1]
    assert label_ranks(-logits_BK[:1], torch.tensor([[1, -1, -1]])).tolist() == [3]  # padding is no class 0
    losses_B = example_losses(log_probabilities(logits_BK), labels_BM)
    log_shares = torch.log_softmax(logits_BK[0].double(), dim=0)
    assert losses_B[0].item() == pytest.approx(-(log_shares[0] + log_shares[2]).item() / 2)
    assert losses_B[2].item() == pytest.approx(math.log(4))


def ranks_by_sorting(logits_BK: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """The place of each label after a stable sort: larger logits first, among equal ones the lower class."""
    order_BK = np.argsort(-logits_BK, axis=1, kind="stable")
    return np.argmax(order_BK == labels_B[:, None], axis=1)


@pytest.mark.parametrize("num_classes", [1, 2, 7, 100])
def test_ranks_are_those_of_a_stable_sort_also_where_logits_are_equal(num_classes):
    rng = np.random.default_rng(num_classes)
    logits = rng.integers(-3, 3, (500, num_classes)).astype(np.float32)  # few values, so many ties
    labels = rng.integers(0, num_classes, 500)

    ranks = label_ranks(torch.from_numpy(logits), torch.from_numpy(labels))

    assert ranks.dtype == torch.int64
    assert ranks.tolist() == ranks_by_sorting(logits, labels).tolist()


@pytest.mark.parametrize("num_classes", [1, 3, 5, 6, 40, 1_000, 4_096, 5_003])
@pytest.mark.parametrize("num_values", [2, 40, 2_000, 2**24])  # from all equal to hardly a tie
def test_top_classes_are_the_first_of_a_stable_sort_also_where_logits_are_equal(num_classes, num_values):
    rng = torch.Generator().manual_seed(num_classes + num_values)
    logits_BK = torch.randint(num_values, (60, num_classes), generator=rng).float()
    logits_BK[:12].clamp_(
        max=logits_BK[:12].sort(dim=1).values[:, -min(5, num_classes)].min()
    )  # at the fifth
    for rows, value in ((slice(20, 30), math.nan), (slice(25, 35), -math.inf), (slice(33, 40), math.inf)):
        logits_BK[rows].masked_fill_(
            torch.rand(logits_BK[rows].shape, generator=rng) < 3 / num_classes, value
        )
    logits_BK[40], logits_BK[41], logits_BK[42, 1:] = math.nan, -math.inf, math.nan
    logits_BK[43:] -= num_values / 2
    logits_BK[50:] *= torch.tensor([1.0, -1.0])[torch.arange(num_classes) % 2]  # 0 and -0 are equal

    order_BK = logits_BK.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(top_classes(logits_BK, 5), order_BK[:, :5])
    assert top_classes(logits_BK[:0], 5).shape == (0, min(5, num_classes))


def test_a_rank_of_zero_is_what_argmax_calls_right():
    logits = torch.randint(-2, 2, (400, 5), generator=torch.Generator().manual_seed(0)).float()
    labels = torch.arange(400) % 5

    assert torch.equal(label_ranks(logits, labels) == 0, logits.argmax(dim=1) == labels)


def test_a_head_of_zeros_scores_the_frequency_of_class_zero_and_not_100_percent():
    labels = torch.tensor([0, 0, 0, 1, 2, 5, 6, 6, 7, 9])
    logits = torch.zeros(10, 10)
    result = metrics_of(label_ranks(logits, labels), example_losses(log_probabilities(logits), labels))

    assert result.top1 == 3 / 10
    assert result.top5 == 5 / 10  # classes 0 ... 4
    assert result.loss == pytest.approx(math.log(10), rel=1e-14)
    assert result.num_examples == 10


def test_top1_and_top5_of_a_small_table_by_hand():
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1]] * 6)
    result = metrics_of(label_ranks(logits, torch.arange(6)), torch.tensor([0.5, 1, 1.5, 2, 2.5, 3]))

    assert (result.top1, result.top5, result.loss) == (1 / 6, 5 / 6, 1.75)


def test_top5_of_fewer_than_five_classes_is_everything():
    logits, labels = torch.randn(20, 3), torch.arange(20) % 3

    assert (
        metrics_of(label_ranks(logits, labels), example_losses(log_probabilities(logits), labels)).top5 == 1
    )


def test_losses_are_minus_the_logarithm_of_the_labels_probability():
    logits, labels = np.random.default_rng(0).normal(0, 5, (50, 9)), np.arange(50) % 9
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    losses = example_losses(log_probabilities(torch.from_numpy(logits)), torch.from_numpy(labels))

    np.testing.assert_allclose(losses, -np.log(shares[np.arange(50), labels]), rtol=1e-12)


def test_losses_are_computed_in_double_precision_and_survive_large_logits():
    logits = torch.tensor([[0.0, 2e4], [2e4, 0.0]])
    losses = example_losses(log_probabilities(logits), torch.tensor([0, 0]))

    assert losses.dtype == torch.float64
    assert losses.tolist() == [2e4, 0]


def test_a_mean_over_many_examples_does_not_lose_the_small_ones():
    losses = torch.full((2_000_000,), 0.1)  # a float32 running sum would be off in the third digit
    result = metrics_of(torch.zeros(2_000_000, dtype=torch.int64), losses)

    assert result.loss == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)
