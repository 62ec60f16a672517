"""A head that starts as the closed form, and the choice between it, the fine-tuned network and both mixed."""

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import minimize, minimize_scalar
from sklearn.linear_model import Ridge

from tests.conftest import run, vit
from tests.training.test_exact import EXACT, exact_run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.errors import VitError
from vitcli.evaluation.metrics import Metrics
from vitcli.features import least_squares
from vitcli.models.build import TransformerOptions, architecture, build, last_layers
from vitcli.models.features import outputs
from vitcli.output.text import brief_delivery, delivery_text
from vitcli.training import splits
from vitcli.training.methods import initial_head, probe_head
from vitcli.training.methods.initial_head import copy_of, start_weights
from vitcli.training.methods.outputs import Outputs
from vitcli.training.methods.probe_head import calibration, closed_form_head
from vitcli.training.methods.wise_ft import choose, interpolate
from vitcli.training.splits import hold_out

PROBE = ("--set", "model.head=probe")
SHAPES = {"more rows than features": (60, 8), "more features than rows": (12, 40)}


def problem(num_rows: int, width: int, *, num_classes: int = 3) -> tuple[torch.Tensor, np.ndarray]:
    """Features of classes that overlap, so that no closed form is right on all rows; one is constant."""
    rng = np.random.default_rng(0)
    labels_N = np.arange(num_rows) % num_classes
    features_ND = rng.normal(0, 1, (num_rows, width)) + 0.7 * rng.normal(0, 1, (num_classes, width))[labels_N]
    features_ND[:, 0] = 3
    return torch.from_numpy(features_ND.astype(np.float32)), labels_N


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_layer_is_the_closed_form_times_its_temperature(shape, loss):
    """The truth is scikit-learn's ridge regression on the standardised features."""
    features_ND, labels_N = problem(*SHAPES[shape])
    layer = closed_form_head(features_ND, labels_N, num_classes=3, loss=loss, groups_N=None)
    facts = layer.facts

    inputs_ND = features_ND.double().numpy()
    inputs_ND = (inputs_ND - inputs_ND.mean(axis=0)) / (inputs_ND.std(axis=0) + 1e-5)
    inputs_NE = np.c_[inputs_ND, np.full(len(inputs_ND), 100.0)]
    targets_NK = 2.0 * (labels_N[:, None] == np.arange(3)) - 1
    ridge = Ridge(alpha=facts["l2"], fit_intercept=False, solver="svd").fit(inputs_NE, targets_NK)
    expected_NK = facts["temperature"] * ridge.predict(inputs_NE) + facts["offset"]

    logits_NK = features_ND @ layer.weight_KD.T + layer.bias_K
    assert np.abs(logits_NK.numpy() - expected_NK).max() <= 1e-5
    assert facts["num_examples"] == len(labels_N) and 0.4 < facts["left_out_top1"] <= 1
    assert (facts["offset"] == 0) == (loss == "softmax")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_layer_solved_again_is_that_of_the_eigenvectors(shape):
    features_ND, labels_N = problem(*SHAPES[shape])
    solution = least_squares.solve(features_ND, labels_N, num_classes=3, l2=(0.5, 8.0), groups_N=None)

    for which in (0, 1):
        np.testing.assert_allclose(probe_head.solve_at(solution, which), solution.weights(which), atol=1e-9)


def test_temperatures_are_those_of_a_general_optimiser():
    rng = np.random.default_rng(1)
    labels_N = rng.integers(0, 4, 50)
    scores_NK = rng.normal(0, 0.4, (50, 4)) + 0.8 * (labels_N[:, None] == np.arange(4)) - 1
    hot_NK = labels_N[:, None] == np.arange(4)

    def cross_entropy(log_t: float) -> float:
        logits_NK = math.exp(log_t) * scores_NK
        smooth_NK = hot_NK * (1 - 1 / 52) + 1 / 52 / 4
        return -(smooth_NK * (logits_NK - np.logaddexp.reduce(logits_NK, axis=1, keepdims=True))).mean()

    softmax = minimize_scalar(cross_entropy, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
    assert calibration(scores_NK, labels_N, loss="softmax") == (pytest.approx(math.exp(softmax.x), 1e-5), 0)

    def binary(parameters: np.ndarray) -> float:
        logits_NK = parameters[0] * scores_NK + parameters[1]
        targets_NK = np.where(hot_NK, 1 - 1 / 52, 1 / 152)  # 50 pairs of a row and its class, 150 others
        return (np.logaddexp(0, logits_NK) - targets_NK * logits_NK).mean()

    sigmoid = minimize(binary, (1.0, 0.0), tol=1e-12)
    assert calibration(scores_NK, labels_N, loss="sigmoid") == pytest.approx(tuple(sigmoid.x), rel=1e-3)


def test_scores_without_a_mistake_have_a_temperature_too_and_those_of_chance_the_least():
    labels_N = np.arange(30) % 3
    hot_NK = 2.0 * (labels_N[:, None] == np.arange(3)) - 1

    # By hand: p of the label is 1 - 1/32 + 1/96 where the scores differ by 2.
    right = 1 - 1 / 32 + 1 / 96
    by_hand = math.log(2 * right / (1 - right)) / 2
    assert calibration(hot_NK, labels_N, loss="softmax")[0] == pytest.approx(by_hand, rel=1e-5)
    assert calibration(-hot_NK, labels_N, loss="softmax")[0] == pytest.approx(probe_head.LEAST_SCALE)
    assert all(map(math.isfinite, calibration(hot_NK, labels_N, loss="sigmoid")))


def test_a_single_image_of_each_class_leaves_the_scores_as_they_are():
    features_ND, labels_N = problem(3, 5)
    facts = closed_form_head(features_ND, labels_N, num_classes=3, loss="softmax", groups_N=None).facts

    assert (facts["left_out_top1"], facts["temperature"]) == (None, 1.0)
    assert facts["l2"] == least_squares.DEFAULT_L2


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_the_logits_of_a_network_are_those_of_the_layer_on_its_features(classifier):
    options = TransformerOptions(classifier=classifier, layers=2, hidden=64, mlp=64, heads=2, patch_size=8)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=3, options=options)
    torch.manual_seed(0)
    model = build(arch, dropout=0.0, init="paper").eval()
    images_BCHW = torch.rand(12, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        features_BD = outputs(model, images_BCHW, layer="pre_logits", with_logits=False)
        layer, whole = (
            closed_form_head(
                features_BD[:rows], np.arange(rows) % 3, num_classes=3, loss="softmax", groups_N=None
            )
            for rows in (9, 12)
        )
        start = start_weights(model)
        start.tensors = copy_of(model)
        start.set_heads(model, layer, whole, Metrics(1.0, 1.0, 0.0, 1))

        torch.testing.assert_close(model(images_BCHW), features_BD @ layer.weight_KD.T + layer.bias_K)
    assert start.head_names == ("head.weight", "head.bias")
    assert torch.equal(last_layers(model)[0].weight, start.tensors["head.weight"])
    assert torch.equal(start.delivered["head.weight"], whole.weight_KD)
    again = start_weights(model)
    again.tensors = copy_of(model)
    again.restore(start.stored, start.state())
    assert all(torch.equal(again.delivered[name], value) for name, value in start.delivered.items())
    assert all(torch.equal(again.tensors[name], value) for name, value in start.tensors.items())


def test_weights_between_two_networks_are_those_computed_by_hand():
    start = {"w": torch.tensor([0.0, 8.0]), "steps": torch.tensor(3)}
    final = {"w": torch.tensor([4.0, float("nan")]), "steps": torch.tensor(7)}

    between = interpolate(start, final, 0.25)
    assert between["w"][0] == 1.0 and between["w"].isnan().tolist() == [False, True]
    assert between["steps"] == 7
    assert interpolate(start, final, 0.0) is start and interpolate(start, final, 1.0) is final


def chosen(scores: dict[float, float | None], *, diverged: str = "") -> dict:
    def score(alpha: float) -> Metrics | None:
        return None if scores[alpha] is None else Metrics(scores[alpha], 1.0, 0.5, 40)

    split = DataSet("demo").open("test")
    return choose(score, split, facts={}, diverged=diverged).summary()


def test_the_best_on_the_images_to_choose_by_is_delivered_and_of_equals_the_fine_tuned():
    equal = chosen({1.0: 0.9, 0.75: 0.9, 0.5: 0.9, 0.25: 0.9, 0.0: 0.9})
    between = chosen({1.0: 0.9, 0.75: 0.925, 0.5: 0.95, 0.25: 0.95, 0.0: 0.8})
    destroyed = chosen({1.0: 0.1, 0.75: None, 0.5: 0.2, 0.25: 0.3, 0.0: 0.8})

    assert (equal["delivered"], equal["delivered_alpha"]) == ("finetuned", 1.0)
    assert (between["delivered"], between["delivered_alpha"]) == ("interpolated", 0.5)
    assert (destroyed["delivered"], destroyed["probe_top1"], destroyed["finetuned_top1"]) == (
        "probe",
        0.8,
        0.1,
    )
    assert destroyed["interpolation"] == {"0": 0.8, "0.25": 0.3, "0.5": 0.2, "0.75": None, "1": 0.1}
    assert delivery_text(equal).endswith("on 40 images of the dev split: equal to the probe head")
    assert delivery_text(between) == (
        "50% of the way from the probe head to the fine-tuned network, 95.00% on 40 images of the "
        "dev split: 15.0 points above the probe head, 5.0 points above the fine-tuned network"
    )
    assert "70.0 points above the fine-tuned network" in delivery_text(destroyed)


def test_a_run_that_diverged_has_the_probe_alone():
    summary = chosen({0.0: 0.8}, diverged="the loss is not a finite number")

    assert (summary["delivered"], summary["finetuned_top1"]) == ("probe", None)
    assert summary["interpolation"] == {"0": 0.8} and summary["diverged"]
    assert delivery_text(summary).endswith("the fine-tuned network diverged")
    refitted = summary | {"probe_head": {"num_delivered_examples": 40}}
    assert delivery_text(refitted).endswith("diverged; delivered with the closed form on all 40 images")


def test_images_to_choose_by_are_of_every_class_and_no_longer_trained_on(photos):
    train = DataSet(str(photos)).open("train")
    given = {"data.dataset": str(photos), "model.ckpt": "demo"}

    def held_out(split, *overrides):
        return hold_out(split, recipes.load("finetune/default", overrides, given))

    probe = "model.head=probe"
    rest, choice = held_out(train, probe, "data.dev_fraction=0.25")
    assert (len(rest), len(choice)) == (18, 6) and np.bincount(choice.read_labels()).tolist() == [3, 3]
    places = [{split.where_is(row) for row in range(len(split))} for split in (rest, choice, train)]
    assert places[0] | places[1] == places[2] and not places[0] & places[1]
    assert len(held_out(train, probe, "data.dev_fraction=0")[1]) == 2
    with pytest.raises(VitError, match="has a single image, so no dev split"):
        held_out(train.rows(np.array([0, 12])), probe)
    assert held_out(train) == (train, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "MOST_TO_CHOOSE_BY", 4)
        assert len(held_out(train, probe, "data.dev_fraction=0.25")[1]) == 4


@pytest.fixture(scope="module")
def unbroken(photos, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("probe") / "run"
    small_run(photos, path, *TRICKY, *PROBE)
    return path


def test_a_run_says_what_it_delivers_and_its_first_loss_is_that_of_the_probe(unbroken):
    summary = json.loads((unbroken / "summary.json").read_text())
    weights = load_file(unbroken / "model.safetensors")
    newest = unbroken / "checkpoints/step_0000008"

    facts, record = summary["probe_head"], json.loads((newest / "state.json").read_text())["probe_head"]
    assert facts == {name: value for name, value in record.items() if name not in ("digest", "score")}
    assert (facts["num_examples"], summary["num_choice_examples"], summary["num_train_examples"]) == (
        22,
        2,
        22,
    )
    assert facts["labels_to_check"] == {"num_checked": 24, "num_named": 0, "first": []}
    assert (summary["probe_top1"], summary["finetuned_top1"], summary["delivered"]) == (1.0, 1.0, "finetuned")
    first = json.loads((unbroken / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] < 0.5 * math.log(2)  # that of a head of zeros is ln 2
    averaged = load_file(newest / "average.safetensors")
    assert all(torch.equal(weights[name], averaged[name]) for name in weights)
    assert "equal to the probe head" in (unbroken / "README.md").read_text()


def test_a_run_with_a_probe_head_resumes_bit_for_bit(photos, unbroken, tmp_path):
    broken = tmp_path / "run"
    when_logged(broken, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*SMALL, "--dataset", photos, "--out", broken, "--steps", 8, *TRICKY, *PROBE)
    small_run(photos, broken, *TRICKY, *PROBE)

    assert stopped.code == 143 and fingerprint(broken) == fingerprint(unbroken)


def assert_head_of_all_images(run_dir: Path, photos: Path, weights: dict[str, torch.Tensor]) -> None:
    """Fit the closed form again, on the features of all training images from `vit embed`."""
    file = run_dir / "features.safetensors"
    options = ("--split", "train", "--layer", "pre_logits", "--out", file)
    assert run("embed", "--ckpt", run_dir, "--dataset", photos, *options).code == 0
    stored = load_file(file)
    assert len(stored["labels"]) == 24
    layer = closed_form_head(
        stored["features"].float(), stored["labels"].numpy(), num_classes=2, loss="softmax", groups_N=None
    )
    torch.testing.assert_close(weights["head.weight"], layer.weight_KD, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("how", [(), ("--set", "eval.every=1")], ids=["in a step", "in an evaluation"])
def test_a_destroyed_run_delivers_the_probe_and_says_so(photos, tmp_path, how):
    """Layer norms keep a network finite: only a rate beyond all measure makes numbers that are not."""
    words = (*SMALL, "--dataset", photos, "--out", tmp_path / "run", "--steps", 6, "--batch-size", 8)
    changes = (
        "--lr",
        1e30,
        "--set",
        "optimizer.clip=0",
        "--set",
        "schedule.warmup=0",
        "--precision",
        "fp32",
        *PROBE,
        *how,
    )
    ended = run(*[word for word in words if word not in ("--lr", "0.02", "--quiet")], *changes)

    summary = ended.json
    assert ended.code == 0 and "training diverged, the probe head is delivered" in ended.err
    assert summary["delivered"] == "probe" and summary["finetuned_top1"] is None and summary["top1"] == 1.0
    assert summary["images_per_s"] is None and "not" in summary["diverged"]
    weights = load_file(tmp_path / "run/model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())
    assert_head_of_all_images(tmp_path / "run", photos, weights)
    assert run(*[word for word in words if word not in ("--lr", "0.02")], *changes).json == summary


def test_a_probe_head_is_refused_where_it_cannot_be(photos, tmp_path):
    words = ("--dataset", photos, "--out", tmp_path / "run", "--steps", 2, *PROBE)
    for objective in ("masked_patch",):
        refused = run(*SMALL, *words, "--set", f"objective.loss={objective}")
        assert refused.code == 2, refused.err
    refused = run("pretrain", "--recipe", "pretrain/demo", "--json", *words)
    assert refused.code == 2 and refused.json["error"]["where"] == "recipe key model.head"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_make_the_probe_head_and_the_choice_of_one(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.training.test_exact.EXACT", (*EXACT, *PROBE))
    for processes in (1, 2):
        ended = exact_run(photos, tmp_path / str(processes), processes=processes)
        assert ended.returncode == 0, ended.stderr

    assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--num-processes", 2), ("--num-processes", 2, "--shard")], ids=str)
def test_destroyed_weights_deliver_the_probe_on_several_processes(photos, tmp_path, how):
    words = [word for word in SMALL if word not in ("--lr", "0.02")]
    changes = ("--lr", 1e30, "--set", "optimizer.clip=0", "--set", "schedule.warmup=0", "--batch-size", 8)
    ended = vit(*words, "--dataset", photos, "--out", tmp_path / "run", "--steps", 6, *changes, *PROBE, *how)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["delivered"] == "probe" and summary["top1"] == 1.0


@pytest.mark.slow
def test_kills_at_random_instants_change_no_bit_of_a_run_with_a_probe_head(photos, tmp_path):
    """Also in the feature pass and in the choice, where nothing is saved."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    every = "train.save_every=1"
    words = [every if str(word).startswith("train.save_every=") else word for word in (*TRICKY, *PROBE)]
    assert every in words
    small_run(photos, unbroken, *words, steps=40)
    for at in (0, 3, 9, 20, 40):
        vit(
            *SMALL, "--dataset", photos, "--out", killed, "--steps", 40, *words,
            on_start=lambda process, at=at: when_logged(killed, at, process.kill), timeout=300,
        )  # fmt: skip
    small_run(photos, killed, *words, steps=40)

    assert fingerprint(killed) == fingerprint(unbroken)


def clusters(rng: np.random.Generator, *, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Sixty rows in eight dimensions around three means, and their classes."""
    labels_N = np.arange(60) % 3
    return rng.normal(size=(60, 8)) + distance * np.eye(3, 8)[labels_N], labels_N


@pytest.mark.parametrize("distance", [8.0, 0.5])
def test_labels_to_check_are_those_that_were_changed_and_none_where_features_know_too_little(distance):
    features_ND, labels_N = clusters(np.random.default_rng(0), distance=distance)
    labels_N[[7, 20]] = (labels_N[[7, 20]] + 1) % 3
    features_ND = features_ND.astype(np.float32)
    rows = Outputs(features_ND, features_ND[:, :0], labels_N, None, lambda row: f"{row}.png")
    head = closed_form_head(torch.from_numpy(features_ND), labels_N, None, num_classes=3, loss="softmax")

    found = initial_head.labels_to_check(head, rows, split_of_three_classes())

    if distance < 1:
        assert head.facts["left_out_top1"] < 0.8 and found is None
        return
    assert (found["num_checked"], found["num_named"]) == (60, 2)
    assert {label["place"] for label in found["first"]} == {"7.png", "20.png"}
    names = {label["place"]: (label["label"], label["other"]) for label in found["first"]}
    assert names == {"7.png": ("c", "b"), "20.png": ("a", "c")}  # 7 % 3 is 1, 20 % 3 is 2
    both = rows + rows
    assert both.place_of(67) == "7.png" and len(both.labels_N) == 120


def split_of_three_classes():
    return SimpleNamespace(num_classes=3, class_names=("a", "b", "c"))


def test_a_line_tells_the_parts_of_a_mixture_in_the_order_of_their_names():
    summary = chosen({1.0: 0.9, 0.75: 0.95, 0.5: 0.9, 0.25: 0.9, 0.0: 0.8})

    assert brief_delivery(summary).startswith("25% probe head, 75% fine-tuned")


def test_weights_that_are_always_wrong_come_before_weights_whose_outputs_are_no_numbers():
    summary = chosen({1.0: None, 0.75: None, 0.5: 0.0, 0.25: 0.0, 0.0: 0.0})

    assert summary["delivered_alpha"] == 0.5
