"""The two training losses, against hand values and a second implementation in numpy."""

import math

import numpy as np
import pytest
import torch

from vitcli.training.objective import loss_fn, sigmoid_xent, softmax_xent, supervised

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (6, 4))
LABELS = np.array([0, 1, 2, 3, 3, 0])
ONE_HOT = np.eye(4)[LABELS]


def tensors():
    return torch.from_numpy(LOGITS), torch.from_numpy(LABELS)


@pytest.mark.parametrize("num_classes", [2, 10, 1_000, 21_843])
def test_a_zero_head_gives_ln_k_under_softmax_and_k_ln_2_under_sigmoid(num_classes):
    logits, labels = torch.zeros(3, num_classes), torch.tensor([0, 1, num_classes - 1])

    assert float(softmax_xent(logits, labels)) == pytest.approx(math.log(num_classes), rel=1e-6)
    assert float(sigmoid_xent(logits, labels)) == pytest.approx(num_classes * math.log(2), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_softmax_targets_are_smoothed_towards_all_classes_alike(smoothing):
    targets = ONE_HOT * (1 - smoothing) + smoothing / 4
    log_shares = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))

    loss = loss_fn("softmax", label_smoothing=smoothing)(*tensors())

    assert float(loss) == pytest.approx(-(targets * log_shares).sum(axis=1).mean(), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_sigmoid_targets_are_smoothed_to_e_and_one_minus_e(smoothing):
    targets = np.where(ONE_HOT == 1, 1 - smoothing, smoothing)
    yes, no = np.log(1 / (1 + np.exp(-LOGITS))), np.log(1 / (1 + np.exp(LOGITS)))

    loss = loss_fn("sigmoid", label_smoothing=smoothing)(*tensors())

    assert float(loss) == pytest.approx(-(targets * yes + (1 - targets) * no).sum(axis=1).mean(), rel=1e-6)


def test_smoothed_losses_of_one_image_by_hand():
    logits, label = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0])  # shares 3/4 and 1/4

    softmax = -(0.9 * math.log(3 / 4) + 0.1 * math.log(1 / 4))
    sigmoid = -(0.8 * math.log(3 / 4) + 0.2 * math.log(1 / 4)) + math.log(2)
    assert float(softmax_xent(logits, label, label_smoothing=0.2)) == pytest.approx(softmax)
    assert float(sigmoid_xent(logits, label, label_smoothing=0.2)) == pytest.approx(sigmoid)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_batch_has_the_mean_of_its_images(name):
    loss = loss_fn(name, label_smoothing=0.1)
    logits, labels = tensors()

    alone = [float(loss(logits[i : i + 1], labels[i : i + 1])) for i in range(6)]
    assert float(loss(logits, labels)) == pytest.approx(sum(alone) / 6)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_half_precision_logits_are_converted_to_float32_first(name):
    logits, labels = torch.from_numpy(LOGITS).bfloat16(), torch.from_numpy(LABELS)
    loss = loss_fn(name, label_smoothing=0.0)

    assert loss(logits, labels).dtype == torch.float32
    assert torch.equal(loss(logits, labels), loss(logits.float(), labels))


def test_the_gradient_of_softmax_is_probability_minus_target():
    logits, labels = tensors()
    logits = logits.float().requires_grad_()
    softmax_xent(logits, labels).backward()

    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(logits.grad, (shares - ONE_HOT) / 6, atol=1e-6)


def test_several_correct_classes_are_several_positive_targets():
    torch.manual_seed(0)
    logits_BK = torch.randn(2, 4)
    labels_BM = torch.tensor([[0, 3, -1], [2, -1, -1]])
    by_hand = 0.0
    for row, right in enumerate(({0, 3}, {2})):
        for k in range(4):
            share = 1 / (1 + math.exp(-float(logits_BK[row, k])))
            by_hand -= math.log(share if k in right else 1 - share)

    assert sigmoid_xent(logits_BK, labels_BM).item() == pytest.approx(by_hand / 2, rel=1e-5)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_mixed_images_have_the_loss_of_mixed_targets(name):
    class Pixels(torch.nn.Module):
        def forward(self, images_BCHW):
            self.seen = images_BCHW
            return images_BCHW.flatten(1)[:, :4]

    model, images, labels = Pixels(), torch.randn(3, 3, 2, 2), torch.tensor([0, 1, 3])
    torch.manual_seed(5)
    loss = supervised(loss_fn(name, label_smoothing=0.0), mixup=0.4)(model, images, labels)
    share = float(((model.seen - images.roll(1, 0)) / (images - images.roll(1, 0))).mean())
    targets_BK = share * torch.eye(4)[labels] + (1 - share) * torch.eye(4)[labels.roll(1)]
    logits_BK = model.seen.flatten(1)[:, :4]
    if name == "softmax":
        expected = -(targets_BK * logits_BK.log_softmax(dim=1)).sum(dim=1).mean()
    else:
        yes, no = torch.sigmoid(logits_BK).log(), torch.sigmoid(-logits_BK).log()
        expected = -(targets_BK * yes + (1 - targets_BK) * no).sum(dim=1).mean()

    assert 0.5 <= share < 1
    torch.testing.assert_close(loss, expected)
    torch.manual_seed(5)
    assert torch.equal(supervised(loss_fn(name, label_smoothing=0.0), mixup=0.4)(model, images, labels), loss)


def test_without_mixup_images_and_loss_are_unchanged():
    def model(images_BCHW):
        return images_BCHW.flatten(1)

    images, labels = torch.randn(2, 1, 2, 2), torch.tensor([0, 1])
    objective = supervised(softmax_xent, mixup=0.0)

    assert torch.equal(objective(model, images, labels), softmax_xent(images.flatten(1), labels))
