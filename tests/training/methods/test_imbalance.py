"""Classes of different sizes: what the loss and the sampler get, exact resume, and what is refused."""

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, losses, when_logged
from vitcli.data.balance import class_weights
from vitcli.data.dataset import DataSet
from vitcli.data.sampler import ClassOrder
from vitcli.errors import VitError
from vitcli.training.methods import imbalance
from vitcli.training.methods.imbalance import check_imbalance

SIZES = {"a": 9, "b": 4, "c": 1}
BOTH = ("--set", "data.sampling=sqrt", "--set", "objective.class_weights=sqrt")
AUGMENTED = (
    *BOTH,
    *("--set", "objective.cutmix=1.0", "--set", "objective.mixup=0.2"),
    *("--set", "data.trivialaugment=true", "--set", "data.random_erasing=0.5"),
)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Path:
    """Classes of 9, 4 and 1 images."""
    root, rng = tmp_path_factory.mktemp("uneven"), np.random.default_rng(0)
    for split, sizes in (("train", SIZES), ("test", dict.fromkeys(SIZES, 1))):
        for name, count in sizes.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def test_the_first_loss_is_that_of_the_drawn_classes_with_their_weights(uneven, tmp_path):
    words = ("--dataset", uneven, "--out", tmp_path / "run", "--steps", 1, "--batch-size", 5)
    outcome = run(*SMALL, *words, *BOTH, "--set", "train.seed=3")
    assert outcome.code == 0, outcome.err + outcome.out
    labels = np.repeat(np.arange(3), list(SIZES.values()))
    drawn = labels[ClassOrder(labels, sampling="sqrt", seed=3).rows_at(range(5))]
    weights = class_weights(np.array(list(SIZES.values())), "sqrt")

    # A head of zeros gives ln 3 for each image.
    assert losses(tmp_path / "run") == [pytest.approx(math.log(3) * weights[drawn].mean(), rel=1e-6)]
    assert weights[drawn].mean() != pytest.approx(1, abs=0.02)
    recipe = (tmp_path / "run/recipe.toml").read_text()
    assert 'sampling = "sqrt"' in recipe and 'class_weights = "sqrt"' in recipe


@pytest.mark.slow
def test_a_stopped_run_with_all_of_it_resumes_bit_for_bit(uneven, tmp_path):
    words = (*SMALL, "--dataset", uneven, "--steps", 5, *TRICKY, *AUGMENTED)
    assert run(*words, "--out", tmp_path / "unbroken").code == 0
    out = tmp_path / "run"
    when_logged(out, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))

    assert run(*words, "--out", out).code == 143
    assert run(*words, "--out", out, "--workers", 3).code == 0
    assert fingerprint(out) == fingerprint(tmp_path / "unbroken")


@pytest.mark.parametrize("rule", ["none", "balanced", "sqrt"])
def test_weights_in_the_loss_are_by_the_sizes_of_the_classes_and_1_in_the_mean(rule):
    """Of eight and two images: n^-1 and n^-1/2, times what makes the mean over the images 1."""
    labels = np.repeat([0, 1], [8, 2])
    split = SimpleNamespace(read_labels=lambda: labels, num_classes=2)
    recipe = SimpleNamespace(objective=SimpleNamespace(class_weights=rule))

    found = imbalance.loss_weights(split, recipe)
    if rule == "none":
        assert found == ()
    else:
        expected = np.array([8.0, 2.0]) ** (-1.0 if rule == "balanced" else -0.5)
        expected /= expected[labels].mean()
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "sampling", "rule"),
    [
        ("none", "uniform", "none"),
        ("none", "sqrt", "sqrt"),
        ("balanced", "uniform", "balanced"),
        ("balanced", "sqrt", "balanced"),  # both: the loss, which a closed form can weigh by
        ("sqrt", "balanced", "sqrt"),
    ],
)
def test_the_rule_of_classes_is_that_of_the_loss_and_else_that_of_drawing(weights, sampling, rule):
    recipe = SimpleNamespace(
        objective=SimpleNamespace(class_weights=weights), data=SimpleNamespace(sampling=sampling)
    )

    assert imbalance.balance_of(recipe) == rule


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"is_multilabel": True}, "have several labels each"), ({"is_large": True}, "order of its shards")],
)
@pytest.mark.parametrize("key", ["data.sampling", "objective.class_weights"])
def test_labels_that_cannot_be_counted_are_refused_before_anything_is_read(changes, what, key):
    class Unread(SimpleNamespace):
        def __len__(self):
            return 14

        def read_labels(self):
            raise AssertionError("it would take long")

    split = Unread(**{"name": "shards", "is_multilabel": False, "is_large": False} | changes)
    values = {"data.sampling": "uniform", "objective.class_weights": "none"}
    recipes = [
        SimpleNamespace(
            data=SimpleNamespace(sampling=chosen["data.sampling"]),
            objective=SimpleNamespace(class_weights=chosen["objective.class_weights"]),
        )
        for chosen in (values, values | {key: "sqrt"})
    ]

    check_imbalance(split, recipes[0])
    with pytest.raises(VitError, match=what) as refused:
        check_imbalance(split, recipes[1])
    assert key in refused.value.where and f"--set {key}=" in refused.value.fix


def test_a_last_class_without_images_has_a_weight_of_its_own():
    split = replace(
        DataSet("demo").open("test[:4]"), num_classes=4, read_labels=lambda: np.array([0, 0, 1, 2])
    )
    recipe = SimpleNamespace(objective=SimpleNamespace(class_weights="full"))

    assert imbalance.loss_weights(split, recipe) == pytest.approx((2 / 3, 4 / 3, 4 / 3, 0))
