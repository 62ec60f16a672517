"""The two training losses, against hand values and a second implementation in numpy."""

import math

import numpy as np
import pytest
import torch

from vitcli.training.objective import draw_box, loss_fn, sigmoid_xent, softmax_xent, supervised

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


def test_class_weights_multiply_the_loss_of_each_image_by_that_of_its_class():
    weights = (0.5, 2.0, 1.0, 0.25)
    loss = loss_fn("softmax", label_smoothing=0.1, class_weights=weights)
    logits, labels = tensors()
    alone = [
        weights[label] * float(softmax_xent(logits[i : i + 1], labels[i : i + 1], label_smoothing=0.1))
        for i, label in enumerate(LABELS)
    ]
    plain = loss_fn("softmax", label_smoothing=0.0, class_weights=weights)(logits, labels)
    torch_s = torch.nn.functional.cross_entropy(logits, labels, torch.tensor(weights).double())

    assert float(loss(logits, labels)) == pytest.approx(sum(alone) / 6)
    assert float(plain) == pytest.approx(float(torch_s) * sum(weights[label] for label in LABELS) / 6)
    parts = [float(loss(logits[i : i + 2], labels[i : i + 2])) for i in (0, 2, 4)]  # as of a step in parts
    assert float(loss(logits, labels)) == pytest.approx(sum(parts) / 3)


def test_with_mixup_each_label_has_the_weight_of_its_own_class():
    class Pixels(torch.nn.Module):
        def forward(self, images_BCHW):
            self.seen = images_BCHW
            return images_BCHW.flatten(1)[:, :4]

    model, images, labels = Pixels(), torch.randn(3, 3, 2, 2), torch.tensor([0, 1, 3])
    weights = torch.tensor([0.5, 2.0, 1.0, 0.25])
    loss = loss_fn("softmax", label_smoothing=0.0, class_weights=tuple(weights.tolist()))
    torch.manual_seed(5)
    mixed = supervised(loss, mixup=0.4)(model, images, labels)
    fraction = float(((model.seen - images.roll(1, 0)) / (images - images.roll(1, 0))).mean())
    targets_BK = torch.eye(4) * weights
    targets_BK = fraction * targets_BK[labels] + (1 - fraction) * targets_BK[labels.roll(1)]
    log_BK = model.seen.flatten(1)[:, :4].log_softmax(dim=1)

    torch.testing.assert_close(mixed, -(targets_BK * log_BK).sum(dim=1).mean())


def box_of(height: int, width: int, kept: float, y: int, x: int) -> np.ndarray:
    """The pixels of timm's box of cutmix, where its draws are lam, y and x."""
    mixup = pytest.importorskip("timm.data.mixup")
    draws, before = iter((y, x)), np.random.randint
    np.random.randint = lambda low, high, size=None: next(draws)
    try:
        (top, bottom, left, right), lam = mixup.cutmix_bbox_and_lam((3, height, width), kept)
    finally:
        np.random.randint = before
    inside = np.zeros((height, width), dtype=bool)
    inside[top:bottom, left:right] = True
    assert lam == pytest.approx(1 - inside.mean())
    return inside


@pytest.mark.parametrize("size", [(8, 8), (9, 15), (1, 7)], ids=str)
def test_boxes_of_cutmix_are_timm_s_and_the_weight_is_the_area_that_is_left(size):
    images = torch.arange(3.0)[:, None, None, None].expand(3, 2, *size)
    for seed in range(40):
        torch.manual_seed(seed)
        kept = float(torch.distributions.Beta(1.0, 1.0).sample())
        y, x = (int(torch.randint(side, ())) for side in size)
        torch.manual_seed(seed)
        mixing = draw_box(size, 1.0)
        mixed, weight = mixing.mix(images), mixing.weight
        inside = torch.from_numpy(box_of(*size, kept, y, x))
        expected = torch.where(inside, images.roll(1, 0), images)

        assert torch.equal(mixed, expected)
        assert weight == pytest.approx(1 - float(inside.float().mean()))


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_batch_is_mixed_or_cut_by_a_fair_draw_and_so_is_its_loss(name):
    class Pixels(torch.nn.Module):
        def forward(self, images_BCHW):
            self.seen = images_BCHW
            return images_BCHW.mean(dim=(2, 3))

    model, images, labels = Pixels(), torch.randn(3, 4, 6, 6), torch.tensor([0, 1, 3])
    loss, num_cut = loss_fn(name, label_smoothing=0.0), 0
    for seed in range(60):
        torch.manual_seed(seed)
        found = supervised(loss, mixup=0.4, cutmix=1.0)(model, images, labels)
        fraction = ((model.seen - images.roll(1, 0)) / (images - images.roll(1, 0))).double()
        is_cut = bool((fraction.min() < 0.01) | (fraction.std() > 0.01) | (fraction.min() > 0.9999))
        num_cut += is_cut
        weight = float(fraction.mean())
        expected = weight * loss(model.seen.mean(dim=(2, 3)), labels)
        expected += (1 - weight) * loss(model.seen.mean(dim=(2, 3)), labels.roll(1))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)

    assert 18 <= num_cut <= 42
    torch.manual_seed(7)
    first = supervised(loss, mixup=0.0, cutmix=1.0)(model, images, labels)
    torch.manual_seed(7)
    assert torch.equal(supervised(loss, mixup=0.0, cutmix=1.0)(model, images, labels), first)
