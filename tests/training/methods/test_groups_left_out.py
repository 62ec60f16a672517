"""Images of `data.group_column` are left out together wherever a probe head leaves out: against refits."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tests.evaluation.test_inference import settings
from tests.training.methods.conftest import PREPROCESSING, tiny
from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.data.sources.tables import Choices
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import inference
from vitcli.evaluation.calibration import out_of_distribution
from vitcli.evaluation.calibration.prediction_sets import LEVELS, sets_at
from vitcli.features.least_squares import BIAS
from vitcli.output.text import probe_head_text
from vitcli.training.methods import probe_head
from vitcli.training.methods.calibrate import of_probe
from vitcli.training.methods.initial_head import fit_heads
from vitcli.training.methods.outputs import Outputs, of_rows
from vitcli.training.methods.probe_head import closed_form_head
from vitcli.training.splits import hold_out

NUM_CLASSES, WIDTH = 4, 24
RULE = r"name:(\d)\.png$"  # of the photos: ten groups, each with images of both classes


@cache
def photographs(num_images: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of classes that overlap much."""
    centres_KD = np.random.default_rng(9).normal(0, 1, (NUM_CLASSES, WIDTH))
    rng = np.random.default_rng(seed)
    labels_N = rng.permutation(np.arange(num_images) % NUM_CLASSES)
    return centres_KD[labels_N] + rng.normal(0, 2.5, (num_images, WIDTH)), labels_N


@cache
def copies(num_images: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Three near copies of each photograph, in no order, and which of them belong together."""
    features_ND, labels_N = photographs(num_images)
    rng = np.random.default_rng(1)
    rows = rng.permutation(np.arange(num_images).repeat(3))
    near_ND = features_ND[rows] + rng.normal(0, 0.1, (len(rows), WIDTH))
    return torch.from_numpy(near_ND.astype(np.float32)), labels_N[rows], 5 * rows + 2


def refitted(features_ND: torch.Tensor, labels_N: np.ndarray, groups_N: np.ndarray, l2: float) -> np.ndarray:
    """Scores (N, K) of each row by the normal equations of the rows of other groups."""
    inputs_ND = features_ND.double().numpy()
    inputs_ND = (inputs_ND - inputs_ND.mean(axis=0)) / (inputs_ND.std(axis=0) + 1e-5)
    inputs_NE = np.c_[inputs_ND, np.full(len(inputs_ND), BIAS)]
    targets_NK = 2.0 * (labels_N[:, None] == np.arange(NUM_CLASSES)) - 1
    scores_NK = np.empty(targets_NK.shape)
    for group in np.unique(groups_N):
        out_N = groups_N == group
        left_ME = inputs_NE[~out_N]
        square_EE = left_ME.T @ left_ME + l2 * np.eye(left_ME.shape[1])
        scores_NK[out_N] = inputs_NE[out_N] @ np.linalg.solve(square_EE, left_ME.T @ targets_NK[~out_N])
    return scores_NK


def test_strength_temperature_and_accuracy_of_a_probe_head_are_those_of_refits_without_each_group():
    features_ND, labels_N, groups_N = copies(40)
    head = closed_form_head(features_ND, labels_N, num_classes=NUM_CLASSES, loss="softmax", groups_N=groups_N)
    scores = {l2: refitted(features_ND, labels_N, groups_N, l2) for l2 in probe_head.STRENGTHS}
    right = {l2: (scores_NK.argmax(axis=1) == labels_N).mean() for l2, scores_NK in scores.items()}
    best = max(right, key=lambda l2: (right[l2], l2))
    factor, _ = probe_head.calibration(scores[best], labels_N, loss="softmax")

    assert head.facts["l2"] == best and head.facts["num_groups"] == 40
    assert head.facts["left_out_top1"] == pytest.approx(right[best])
    assert head.facts["temperature"] == pytest.approx(factor, rel=1e-4)
    np.testing.assert_allclose(head.left_out[0], factor * scores[best], rtol=1e-4, atol=1e-4)
    assert head.left_out[1].tolist() == labels_N.tolist()
    # Rows alone are recognised by their copies: another strength, and an accuracy of memory.
    alone = closed_form_head(features_ND, labels_N, num_classes=NUM_CLASSES, loss="softmax", groups_N=None)
    assert alone.facts["left_out_top1"] > head.facts["left_out_top1"] + 0.2
    assert alone.facts["num_groups"] is None
    assert alone.facts["l2"] < best and alone.facts["temperature"] > factor


def test_the_sets_of_a_probe_hold_the_label_as_often_as_promised_for_images_of_other_groups():
    features_ND, labels_N, groups_N = copies(90)
    new_ND, new_N = photographs(2_000, seed=2)
    covered = {}
    for name, groups in (("by groups", groups_N), ("by rows", None)):
        about = {"num_classes": NUM_CLASSES, "loss": "softmax", "groups_N": groups}
        head = closed_form_head(features_ND, labels_N, **about)
        logits_NK = np.zeros((len(labels_N), NUM_CLASSES))
        parts = [
            Outputs(
                features_ND[rows].numpy(),
                logits_NK[rows],
                labels_N[rows],
                groups if groups is None else groups[rows],
            )
            for rows in (slice(0, 200), slice(200, None))
        ]
        calibration = of_probe(*parts, num_classes=NUM_CLASSES, loss="softmax", balance="none")
        new_NK = new_ND @ head.weight_KD.numpy().T + head.bias_K.numpy()
        p_NK = calibration.scaling.probabilities(new_NK)
        for level in LEVELS:
            is_in_NK = sets_at(p_NK, calibration.sets[level])
            covered[name, level] = is_in_NK[np.arange(len(new_N)), new_N].mean()
        assert calibration.chosen_on.endswith("with its group") == (groups is not None)

    assert [covered["by groups", level] for level in LEVELS] == pytest.approx([0.9, 0.95, 0.99], abs=0.03)
    assert covered["by rows", 90] < 0.75


def test_left_out_distances_are_those_of_refits_without_every_group_of_the_fold():
    features_ND, labels_N, groups_N = copies(90)
    features_ND = features_ND.numpy()
    about, how = {"num_classes": NUM_CLASSES}, {"shrinkage": 0.1}
    found_N = out_of_distribution.left_out_distances(features_ND, labels_N, groups_N=groups_N, **about, **how)

    names, firsts = np.unique(groups_N, return_index=True)
    in_order = names[np.argsort(labels_N[firsts], kind="stable")]
    expected_N = np.full(len(labels_N), np.nan)
    for fold in range(out_of_distribution.NUM_FOLDS):
        is_out_N = np.isin(groups_N, in_order[fold :: out_of_distribution.NUM_FOLDS])
        others = out_of_distribution.statistics_of(features_ND[~is_out_N], labels_N[~is_out_N], **about)
        expected_N[is_out_N] = others.distances(features_ND[is_out_N], **how)
    np.testing.assert_allclose(found_N, expected_N)
    # Beside its own copies an image is nearer than a new one will be.
    alone_N = out_of_distribution.left_out_distances(features_ND, labels_N, groups_N=None, **about, **how)
    assert np.median(alone_N) < np.median(found_N)


@pytest.mark.parametrize("rule", [None, RULE])
def test_the_groups_of_the_data_reach_the_head_and_its_calibration(photos, rule):
    given = {"data.dataset": str(photos), "model.ckpt": "demo"}
    overrides = ["model.head=probe", "data.dev_fraction=0.2"]
    split = DataSet(str(photos), Choices(group_column=rule)).open("train")
    train, choice = hold_out(split, recipes.load("finetune/default", overrides, given))
    model, preprocessing = tiny()[0].eval(), Preprocessing(**PREPROCESSING)
    unlabelled = replace(train, read_row=lambda row: (train.read_row(row)[0], row % 3 - 1))
    how = {"num_logits": train.num_classes, "may_overflow": True}
    of_all, of_choice, of_labelled = (
        of_rows(inference.features_and_logits(model, split, preprocessing, settings(), **how), split)
        for split in (train, choice, unlabelled)
    )  # an image without a label shows nothing

    layer, whole, _ = fit_heads(of_all, of_choice, train, loss="softmax", balance="none")
    about = {"num_classes": train.num_classes, "loss": "softmax", "balance": "none"}
    calibration = of_probe(of_all, of_choice, **about)

    assert of_labelled.labels_N.tolist() == [row % 3 - 1 for row in range(len(train)) if row % 3]
    is_labelled_N = np.arange(len(train)) % 3 > 0
    assert np.array_equal(of_labelled.features_ND, of_all.features_ND[is_labelled_N])
    assert np.array_equal(of_labelled.logits_NK, of_all.logits_NK[is_labelled_N])
    groups = [None if part.groups_N is None else {*part.groups_N} for part in (train, choice)]
    assert [layer.facts["num_groups"], whole.facts["num_groups"]] == (
        [None, None] if rule is None else [len(groups[0]), 10]
    )
    assert rule is None or (groups[1] and not groups[0] & groups[1])
    assert ("leaving a group out" in probe_head_text(layer.facts)) == (rule is not None)
    assert (
        calibration.num_images == 24
        and calibration.chosen_on
        == "training images, each left out in turn" + (" with its group" if rule else "")
    )


def test_groups_that_hold_all_images_of_their_classes_leave_nothing_to_choose_by():
    features_ND, labels_N = photographs(40)
    features_ND = torch.from_numpy(features_ND)
    about = {"num_classes": NUM_CLASSES, "loss": "softmax", "groups_N": labels_N // 2}
    facts = closed_form_head(features_ND, labels_N, **about).facts | {"num_train_examples": 40}

    assert (facts["left_out_top1"], facts["temperature"], facts["num_groups"]) == (None, 1.0, 2)
    assert "no class has two groups" in probe_head_text(facts)
    outputs = Outputs(features_ND.numpy(), np.zeros((40, NUM_CLASSES)), labels_N, labels_N // 2)
    nothing = Outputs(*(part[:0] for part in (outputs.features_ND, outputs.logits_NK, labels_N, labels_N)))
    assert (
        of_probe(outputs, nothing, num_classes=NUM_CLASSES, loss="softmax", balance="none")
        == "no class has two groups"
    )
