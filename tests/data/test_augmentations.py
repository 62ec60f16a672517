"""TrivialAugment and Random Erasing against torchvision's and timm's on the same images and draws."""

import random
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vitcli.data.augmentations.random_erasing import erase
from vitcli.data.augmentations.trivialaugment import NAMES, STRENGTHS, operate, trivialaugment

MEAN = (0.485, 0.456, 0.406)
THEIR_NAMES = {name.replace("_", ""): name for name in NAMES}


def picture(height: int = 40, width: int = 52) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.integers(0, 200, (height, width, 3)) + np.arange(width)[:, None]).astype(np.uint8)


def test_operations_strengths_and_pixels_are_torchvision_s():
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    image = picture()

    assert sorted(THEIR_NAMES[name.lower()] for name in space) == sorted(NAMES)
    for their_name, (strengths, is_signed) in space.items():
        name = THEIR_NAMES[their_name.lower()]
        theirs = [float(value) for value in strengths.reshape(-1)]
        assert STRENGTHS[name] == (tuple(theirs), is_signed)
        for strength in {theirs[0], theirs[1 % len(theirs)], theirs[len(theirs) // 2], theirs[-1]}:
            for signed in {strength, -strength} if is_signed else {strength}:
                nearest = autoaugment.InterpolationMode.NEAREST
                expected = autoaugment._apply_op(Image.fromarray(image), their_name, signed, nearest, None)
                assert np.array_equal(operate(name, image, signed), np.array(expected)), (name, signed)


def test_operations_and_both_signs_are_drawn_alike_often(monkeypatch):
    from vitcli.data.augmentations import trivialaugment as module

    calls = []
    monkeypatch.setattr(module, "operate", lambda name, image, strength: calls.append((name, strength)))
    rng = Random(0)
    for _ in range(14_000):
        trivialaugment(picture(4, 4), rng=rng)
    counts = Counter(name for name, _ in calls)

    assert counts.keys() == set(NAMES) - {"identity"}
    assert all(abs(count - 1000) < 130 for count in counts.values())
    turned = [strength for name, strength in calls if name == "rotate"]
    assert len(set(map(abs, turned))) == 31 and 0.4 < np.mean(np.array(turned) > 0) < 0.6


def test_a_larger_image_becomes_the_larger_one_of_what_the_smaller_becomes():
    def resized(image_1CHW: torch.Tensor, side: int) -> torch.Tensor:
        return F.interpolate(image_1CHW, (side, side), mode="bilinear", antialias=True)

    coarse_1CHW = torch.from_numpy(np.random.default_rng(0).uniform(0, 255, (1, 3, 6, 6)))
    small, large = (resized(resized(coarse_1CHW, 48), side).round() for side in (48, 112))
    for seed in range(200):
        augmented = [
            torch.from_numpy(
                trivialaugment(image[0].permute(1, 2, 0).byte().numpy(), rng=Random(seed), scale=scale)
            ).permute(2, 0, 1)[None]
            for image, scale in ((small, 1.0), (large, 112 / 48))
        ]
        difference = augmented[0].float() - resized(augmented[1].float(), 48)
        assert difference.abs().mean() < 16, f"seed {seed}"  # 84 where it is moved by as many pixels


def test_an_image_is_never_changed_in_place_by_trivialaugment():
    image = picture()
    before, rng = image.copy(), Random(1)
    results = [trivialaugment(image, rng=rng) for _ in range(100)]

    assert np.array_equal(image, before)
    assert all(result.shape == image.shape and result.dtype == np.uint8 for result in results)


@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_rectangles_are_those_of_timm_from_the_same_draws(probability):
    timm_erasing = pytest.importorskip("timm.data.random_erasing")
    theirs = timm_erasing.RandomErasing(probability, mode="const", device="cpu")
    changed = 0
    for seed in range(60):
        image = picture()
        erase(image, probability=probability, mean=MEAN, rng=Random(seed))
        values = torch.full((3, 40, 52), 7.0)
        random.seed(seed)
        theirs(values)
        is_erased = (values == 0).all(dim=0).numpy()
        expected = np.where(is_erased[:, :, None], np.uint8([124, 116, 104]), picture())
        assert np.array_equal(image, expected), seed
        changed += bool(is_erased.any())

    assert changed == 60 if probability == 1 else 8 <= changed <= 24
