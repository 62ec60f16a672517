"""A head of zeros that the closed form on the tuned features joins after the last step."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run
from tests.data.test_loader import noise
from tests.evaluation.test_inference import settings
from tests.evaluation.test_masked_patch import PREPROCESSING
from tests.training.test_exact import EXACT, exact_run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.errors import VitError
from vitcli.features.least_squares import BIAS, STD_ADDED
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.training.methods import outputs, refit
from vitcli.training.methods.known import methods_of
from vitcli.training.methods.outputs import num_rows
from vitcli.training.schedule import plan
from vitcli.training.splits import RunSplits

REFIT = ("--set", "model.head=refit")


@pytest.fixture(scope="module")
def runs(photos, tmp_path_factory) -> dict[str, Path]:
    """The same run with a head of zeros, as it is and refitted."""
    root = tmp_path_factory.mktemp("refit")
    for head in ("zero", "refit"):
        small_run(photos, root / head, *TRICKY, "--set", f"model.head={head}")
    return {head: root / head for head in ("zero", "refit")}


def closed_form_by_hand(
    features_ND: np.ndarray, labels_N: np.ndarray, facts: dict
) -> tuple[np.ndarray, np.ndarray]:
    """The layer of two classes by the normal equations, with the strength and temperature of a run."""
    mean_D, std_D = features_ND.mean(axis=0), features_ND.std(axis=0) + STD_ADDED
    inputs_NE = np.c_[(features_ND - mean_D) / std_D, np.full(len(labels_N), BIAS)]
    targets_NK = 2.0 * (labels_N[:, None] == np.arange(2)) - 1
    gram_EE = inputs_NE.T @ inputs_NE + facts["l2"] * np.eye(inputs_NE.shape[1])
    weights_EK = facts["temperature"] * np.linalg.solve(gram_EE, inputs_NE.T @ targets_NK)
    weight_KD = weights_EK[:-1].T / std_D
    return weight_KD, BIAS * weights_EK[-1] - weight_KD @ mean_D


def test_the_head_is_the_tuned_one_plus_the_closed_form_on_the_tuned_features(photos, runs, tmp_path):
    """The truth: the same run without it, its features by `vit embed`, and the normal equations."""
    tuned, refitted = (load_file(runs[head] / "model.safetensors") for head in ("zero", "refit"))
    features = tmp_path / "features.safetensors"
    words = ("--split", "train", "--layer", "pre_logits", "--precision", "fp32", "--out", features)
    assert run("embed", "--ckpt", runs["zero"], "--dataset", photos, *words).code == 0
    stored, facts = load_file(features), json.loads((runs["refit"] / "summary.json").read_text())["refit"]
    features_ND, labels_N = stored["features"].double().numpy(), stored["labels"].numpy()

    weight_KD, bias_K = closed_form_by_hand(features_ND, labels_N, facts)

    assert facts["num_examples"] == len(labels_N) == 24  # all: none is held out
    backbone = [name for name in tuned if not name.startswith("head.")]
    assert all(torch.equal(tuned[name], refitted[name]) for name in backbone)
    added = {name: (refitted[name] - tuned[name]).numpy() for name in ("head.weight", "head.bias")}
    np.testing.assert_allclose(added["head.weight"], weight_KD, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(added["head.bias"], bias_K, rtol=2e-3, atol=2e-3)
    assert np.abs(weight_KD).max() > 0.02


def test_a_run_with_a_refitted_head_resumes_bit_for_bit(photos, runs, tmp_path):
    broken = tmp_path / "run"
    when_logged(broken, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*SMALL, "--dataset", photos, "--out", broken, "--steps", 8, *TRICKY, *REFIT)
    small_run(photos, broken, *TRICKY, *REFIT)

    assert stopped.code == 143 and fingerprint(broken) == fingerprint(runs["refit"])


def test_labels_are_checked_by_the_features_before_training(photos, tmp_path):
    """A wrong label that the network has learnt by heart is named all the same."""
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    first, second = sorted(path for path in (folder / "train").iterdir() if path.is_dir())
    wrong = sorted(first.iterdir())[0]
    wrong.rename(second / f"moved{wrong.suffix}")

    words = ("--dataset", folder, "--out", tmp_path / "run", "--steps", 30, "--batch-size", 12)
    ended = run(*SMALL, *words, *REFIT)
    named = ended.json["probe_head"]["labels_to_check"]
    assert named["num_named"] == 1 and f"moved{wrong.suffix}" in named["first"][0]["place"]
    assert ended.json["probe_head"]["left_out_top1"] >= 0.9


def test_each_pass_takes_a_part_of_the_images_of_the_steps_but_all_of_few(photos):
    def planned(steps: int):
        about = {"batch_size": 32, "per_device_batch": 32, "world_size": 1, "warmup": 0, "forward_macs": None}
        return plan(steps=steps, epochs=None, num_examples=50_000, **about)

    large = DataSet("demo").open("train")
    large = large.rows(np.arange(len(large)).repeat(-(-50_000 // len(large)))[:50_000])
    assert num_rows(large, planned(1_000)) == 5_120
    assert num_rows(large, planned(200)) == 1_024  # of modern/finetune-few
    assert num_rows(large, planned(10)) == outputs.LEAST_ROWS
    assert num_rows(large, planned(100_000)) == outputs.MOST_ROWS
    assert num_rows(DataSet(str(photos)).open("train"), planned(1_000)) == 24


@pytest.mark.parametrize(("rows", "is_fitted"), [([0, 3, 6], False), ([0, 3, 6, 1], True)])
def test_images_of_a_single_class_have_no_closed_form(rows, is_fitted):
    options = TransformerOptions(layers=1)
    model = build(
        architecture("ViT-demo/8", image_size=(32, 48), num_classes=3, options=options), dropout=0.0
    )
    split = noise(count=9).rows(np.array(rows))  # row % 3 is the label
    how = {"most_rows": 9, "loss": "softmax", "balance": "none", "head_layers": None}

    head, _, _ = refit.fit(model, split, PREPROCESSING, settings(), **how)

    assert (head is not None) is is_fitted


@pytest.mark.parametrize("kind", ["is_multilabel", "has_numbers"])
def test_images_of_no_single_class_are_refused(photos, kind):
    given = {"data.dataset": str(photos), "model.ckpt": "demo"}
    recipe = recipes.load("finetune/default", ["model.head=refit"], given)
    split = replace(DataSet(str(photos)).open("train"), **{kind: True})

    splits = RunSplits(split, split)
    with pytest.raises(VitError, match="does not have one per image"):
        for method in methods_of("finetune", recipe, splits):
            method.check(splits)
    zero = recipes.load("finetune/default", ["model.head=zero"], given)
    for method in methods_of("finetune", zero, splits):
        method.check(splits)


@pytest.mark.slow
def test_two_processes_refit_the_head_of_one(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.training.test_exact.EXACT", (*EXACT, *REFIT))
    for processes in (1, 2):
        ended = exact_run(photos, tmp_path / str(processes), processes=processes)
        assert ended.returncode == 0, ended.stderr

    assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")
