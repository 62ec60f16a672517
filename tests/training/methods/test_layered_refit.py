"""A refitted head that reads several layers where their closed form is ahead before training."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from tests.conftest import run, vit
from tests.training.methods.test_refit import closed_form_by_hand
from tests.training.test_finetune import TRICKY, fingerprint, when_logged
from vitcli import load_model
from vitcli import recipe as recipes
from vitcli.errors import VitError, WeightsError
from vitcli.features.label_errors import LEAST_KNOWN
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.training.methods import refit
from vitcli.training.methods.probe_head import ClosedFormHead
from vitcli.training.methods.refit import lr_of
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights_file

LAYERED = ("--set", "model.head=refit", "--set", "model.head_layers=2")
WIDTH, LAYERS = 96, 2


@pytest.fixture(scope="module")
def blind(tmp_path_factory) -> Path:
    """A network whose class token sees no patch: attention adds nothing, so it is equal in all images."""
    options = TransformerOptions(layers=LAYERS)
    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=2, options=options)
    torch.manual_seed(0)
    model = build(arch, dropout=0.0)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.proj.weight)
    file = tmp_path_factory.mktemp("blind") / "blind.safetensors"
    about = {"preprocessing": None, "class_names": None, "metadata": {}}
    write_weights_file(file, model.state_dict(), WeightsInfo(arch, **about))
    return file


def words(ckpt: Path, photos: Path, out: Path, *more: object) -> tuple:
    how = ("--recipe", "finetune/default", "--res", 16, "--lr", 0.02, "--steps", 8, "--quiet", "--json")
    return ("finetune", *how, "--ckpt", ckpt, "--dataset", photos, "--out", out, *TRICKY, *more)


def finetuned(ckpt: Path, photos: Path, out: Path, *more: object) -> dict:
    outcome = run(*words(ckpt, photos, out, *more))
    assert outcome.code == 0, outcome.err + outcome.out
    return outcome.json


@pytest.fixture(scope="module")
def runs(photos, blind, tmp_path_factory) -> dict[str, Path]:
    """The same run with a head of zeros, as it is and with a head of two layers."""
    root = tmp_path_factory.mktemp("layered")
    finetuned(blind, photos, root / "zero")
    finetuned(blind, photos, root / "layered", *LAYERED)
    return {name: root / name for name in ("zero", "layered")}


def summary_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


@torch.no_grad()
def features_by_hand(run_dir: Path, photos: Path) -> tuple[np.ndarray, np.ndarray]:
    """Token and mean of both blocks by timm, of an ordinary network, and labels of the training images."""
    model, transform, _ = load_model(str(run_dir))
    files = sorted((photos / "train").glob("*/*.png"))
    images_NCHW = torch.stack([transform(Image.open(file)) for file in files])
    how = {"norm": True, "output_fmt": "NLC", "return_prefix_tokens": True}
    columns = []
    for patches_NPD, prefix_N1D in model.forward_intermediates(images_NCHW, **how)[1]:
        columns += [prefix_N1D[:, 0], patches_NPD.mean(dim=1)]
    classes = sorted({file.parent.name for file in files})
    return torch.cat(columns, dim=1).double().numpy(), np.array([classes.index(f.parent.name) for f in files])


def test_the_tuned_head_stands_in_its_columns_and_the_closed_form_of_all_joins_it(photos, runs):
    tuned, delivered = (load_file(runs[name] / "model.safetensors") for name in ("zero", "layered"))
    features_NF, labels_N = features_by_hand(runs["zero"], photos)
    facts = summary_of(runs["layered"])["refit"]

    weight_KF, bias_K = closed_form_by_hand(features_NF, labels_N, facts)
    weight_KF[:, 2 * WIDTH : 3 * WIDTH] += tuned["head.weight"].double().numpy()  # of the last class token
    bias_K += tuned["head.bias"].double().numpy()

    assert facts["head_layers"] == LAYERS and facts["num_examples"] == len(labels_N) == 24
    assert all(torch.equal(tuned[name], delivered[name]) for name in tuned if not name.startswith("head."))
    scale = np.abs(weight_KF).max()
    np.testing.assert_allclose(delivered["head.weight"].numpy(), weight_KF, rtol=0.02, atol=1e-3 * scale)
    np.testing.assert_allclose(delivered["head.bias"].numpy(), bias_K, rtol=2e-2, atol=5e-3)
    assert tuned["head.weight"].abs().max() > 1e-3


def test_what_is_delivered_says_so_everywhere(runs):
    summary = summary_of(runs["layered"])
    before = summary["probe_head"]
    with safe_open(runs["layered"] / "model.safetensors", "np") as file:
        stored = json.loads(file.metadata()["vit"])
    config = json.loads((runs["layered"] / "config.json").read_text())["vit"]

    assert before["head_layers"] == LAYERS and before["layered_top1"] == before["left_out_top1"]
    assert before["one_layer_top1"] < 0.7 < before["layered_top1"]
    assert stored["architecture"]["head_layers"] == config["architecture"]["head_layers"] == LAYERS
    card = " ".join((runs["layered"] / "README.md").read_text().split())
    assert f"the last {LAYERS} blocks" in card and "timm and transformers cannot load it" in card
    shown = run("inspect", runs["layered"], "--summary")
    assert "timm has no place for this head" in " ".join(shown.out.split())


def test_a_closed_form_that_would_take_hours_is_not_tried(photos, blind, tmp_path, monkeypatch):
    monkeypatch.setattr(refit, "MOST_SIDE", 23)  # of 24 images and 384 columns
    summary = finetuned(blind, photos, tmp_path / "run", *LAYERED)

    assert summary["refit"]["head_layers"] == 0 and "layered_top1" not in summary["probe_head"]


def test_a_run_with_a_layered_head_resumes_bit_for_bit(photos, blind, runs, tmp_path):
    broken = tmp_path / "run"
    when_logged(broken, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*words(blind, photos, broken, *LAYERED))
    finetuned(blind, photos, broken, *LAYERED)

    assert stopped.code == 143 and fingerprint(broken) == fingerprint(runs["layered"])
    assert summary_of(broken)["probe_head"] == summary_of(runs["layered"])["probe_head"]


def test_checkpoints_have_the_ordinary_head_that_was_trained(photos, runs):
    scores = {}
    for name, run_dir in runs.items():
        checkpoint = run_dir / "checkpoints" / "step_0000008"
        scored = run("evaluate", "--ckpt", checkpoint, "--dataset", photos, "--quiet", "--json")
        assert scored.code == 0, scored.err
        scores[name] = scored.json["loss"]

    assert scores["layered"] == scores["zero"] == summary_of(runs["zero"])["loss"]


def test_a_head_that_is_not_ahead_reads_one_layer_as_without_the_key(photos, tmp_path):
    random = ("--model", "ViT-demo/8", "--set", "model.layers=2")
    for name, layers in (("one", 0), ("two", 2), ("three", 3)):
        keys = ("--set", "model.head=refit", "--set", f"model.head_layers={layers}")
        finetuned("random", photos, tmp_path / name, *random, *keys)
    facts = {name: summary_of(tmp_path / name)["probe_head"] for name in ("one", "two", "three")}

    assert facts["two"]["head_layers"] == summary_of(tmp_path / "two")["refit"]["head_layers"] == 0
    assert facts["two"]["one_layer_top1"] == facts["two"]["layered_top1"] == 1.0
    assert "head_layers" not in facts["one"] and "head_layers" not in facts["three"]  # of two blocks
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two") == fingerprint(tmp_path / "three")


def test_the_labels_to_check_are_those_of_the_better_closed_form(photos, blind, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "train" / "red" / "00.png").rename(folder / "train" / "green" / "moved.png")
    facts = finetuned(blind, folder, tmp_path / "run", *LAYERED)["probe_head"]

    named = facts["labels_to_check"]
    assert facts["one_layer_top1"] < LEAST_KNOWN < facts["layered_top1"]  # with which nothing would be named
    assert named["num_named"] == 1 and "moved.png" in named["first"][0]["place"]


def test_every_command_takes_it(photos, runs, tmp_path):
    ckpt = runs["layered"]
    top1 = summary_of(ckpt)["top1"]
    image = photos / "test" / "red" / "00.png"

    def outcome(*words: object):
        ended = run(*words, "--quiet", "--json")
        assert ended.code == 0, ended.err
        return ended.json

    assert outcome("evaluate", "--ckpt", ckpt)["top1"] == top1 > 0.7
    why = outcome("predict", "--ckpt", ckpt, image, "--why", tmp_path / "why.html")["predictions"][0]["why"]
    assert why["class"] == why["closed_form"]["class"] == "red" and len(why["reasons"]) == 3
    assert np.shape(why["patches"]) == (2, 2)
    widths = {"pre_logits": 4 * WIDTH, "token": WIDTH, "gap": WIDTH}
    for layer, width in widths.items():
        file = tmp_path / f"{layer}.safetensors"
        outcome(
            "embed", "--ckpt", ckpt, "--dataset", photos, "--split", "test", "--layer", layer, "--out", file
        )
        assert load_file(file)["features"].shape == (10, width)
    of_photos = ("--ckpt", ckpt, "--dataset", photos)
    compared = outcome("fewshot", *of_photos, "--layers", "all", "--out", tmp_path / "compared")
    assert compared["command"] == "fewshot"
    outcome("fewshot", *of_photos, "--shots", 5, "--out", tmp_path / "fewshot")
    why = outcome("predict", "--ckpt", tmp_path / "fewshot", image, "--why", tmp_path / "few.html")
    assert why["predictions"][0]["why"]["class"] == "red"
    larger = tmp_path / "larger.safetensors"
    outcome("interpolate-posemb", ckpt, larger, "--res", 32)
    assert load_file(larger)["head.weight"].shape == (2, 4 * WIDTH)
    assert load_file(larger)["pos_embed"].shape == (1, 17, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_program_computes_it(runs, tmp_path, suffix):
    file = tmp_path / f"run.{suffix}"
    exported = run("export", runs["layered"], file, "--quiet", "--json").json

    assert exported["max_rel_difference"] < 1e-5 and exported["num_classes"] == 2
    assert suffix != "onnx" or run("export", "--check", file).code == 0


def test_fine_tuning_from_it_keeps_the_head_or_takes_an_ordinary_one(photos, runs, tmp_path):
    finetuned(runs["layered"], photos, tmp_path / "kept", "--keep-head", "--lr", 0.0001)
    finetuned(runs["layered"], photos, tmp_path / "new")
    shapes = {
        name: load_file(tmp_path / name / "model.safetensors")["head.weight"].shape[1]
        for name in ("kept", "new")
    }

    assert shapes == {"kept": 4 * WIDTH, "new": WIDTH}
    scored = run(
        "evaluate", "--ckpt", tmp_path / "kept" / "checkpoints" / "step_0000008", "--dataset", photos
    )
    assert scored.code == 0, scored.err  # whose head is the wide one


def test_runs_are_averaged_with_runs_of_the_same_head_alone(photos, blind, runs, tmp_path):
    finetuned(blind, photos, tmp_path / "1", *LAYERED, "--set", "train.seed=1")
    average = ("--out", tmp_path / "average", "--quiet", "--json")
    ended = run("average", runs["layered"], tmp_path / "1", "--method", "uniform", *average)
    assert ended.code == 0, ended.err
    assert load_file(tmp_path / "average" / "model.safetensors")["head.weight"].shape == (2, 4 * WIDTH)
    refused = run("average", runs["layered"], runs["zero"], "--out", tmp_path / "none")
    assert refused.code != 0 and "head_layers 2 and 0" in refused.err


def test_the_key_belongs_to_a_refitted_head(photos):
    given = {"data.dataset": str(photos), "model.ckpt": "demo"}
    with pytest.raises(VitError, match=r"model\.head_layers is for model.head = 'refit', which is 'zero'"):
        recipes.load("finetune/default", ["model.head_layers=2"], given)
    some = recipes.load("modern/finetune-some", [], given)
    assert some.model.head_layers == 6
    assert recipes.load("modern/finetune-few", [], given).model.head_layers == 0
    assert recipes.load("modern/finetune-some", ["model.head=probe"], given).model.head_layers == 0


@pytest.mark.parametrize(
    ("facts", "lr"),
    [
        ({"left_out_top1": 0.59}, 0.03),
        ({"left_out_top1": 0.6}, 0.01),
        ({"left_out_top1": 0.9, "one_layer_top1": 0.59, "layered_top1": 0.9}, 0.03),  # as training starts
        ({"left_out_top1": None}, 0.01),
        ({}, 0.01),
    ],
)
def test_the_rate_is_higher_where_the_frozen_features_of_the_last_layer_know_too_little(facts, lr):
    given = {"data.dataset": "photos", "model.ckpt": "demo"}

    assert lr_of(recipes.load("modern/finetune-some", [], given), facts) == lr
    assert lr_of(recipes.load("modern/finetune-few", [], given), facts) == 0.01


@pytest.mark.parametrize(("layered_top1", "layers"), [(0.5, 0), (0.62, 0), (0.63, 2)])
def test_several_layers_have_to_be_ten_points_ahead(layered_top1, layers):
    def fitted(width: int, top1: float) -> ClosedFormHead:
        return ClosedFormHead(torch.zeros(2, width), torch.zeros(2), {"left_out_top1": top1})

    head, facts = refit._better(fitted(2 * LAYERS * 3, layered_top1), fitted(3, 0.525), LAYERS)

    assert facts == {"head_layers": layers, "one_layer_top1": 0.525, "layered_top1": layered_top1}
    assert head.weight_KD.shape[1] == (12 if layers else 3)


def test_a_dry_run_names_what_is_chosen_between(photos):
    shown = " ".join(run("finetune", "--ckpt", "demo", "--dataset", photos, "--dry-run").out.split())
    some, fixed = (
        run("finetune", "--recipe", name, "--ckpt", "demo", "--dataset", photos, "--dry-run", "--json").json
        for name in ("modern/finetune-some", "finetune/default")
    )

    rates = "rate 0.01, or 0.03 where frozen features know less than 60%"
    assert rates in shown and "head on one layer, or on 6 where these know 10 points more" in shown
    assert len(some["candidates"]) == 2 and fixed["candidates"] == []


@pytest.mark.parametrize(
    "stored",
    [{"left_out_top1": "0.9"}, {"one_layer_top1": 1.5}, {"layered_top1": -1}, {"head_layers": "2"},
     {"head_layers": -1}, {"left_out_top1": True}],
)  # fmt: skip
def test_facts_that_no_run_has_written_are_refused(stored):
    with pytest.raises(WeightsError, match="closed form before training are damaged"):
        refit.restored(stored)


def test_facts_of_a_run_are_restored():
    facts = {"left_out_top1": None, "one_layer_top1": 0.25, "layered_top1": 1.0, "head_layers": 2, "l2": 8.0}

    assert refit.restored(facts) == facts and refit.restored({}) == {}


def test_a_rate_that_is_asked_for_is_the_rate():
    given = {"data.dataset": "photos", "model.ckpt": "demo"}
    asked = recipes.load("modern/finetune-some", [], given | {"optimizer.lr": "0.02"})
    both = recipes.load(
        "modern/finetune-some", ["optimizer.unfamiliar_lr=0.05"], given | {"optimizer.lr": "0.02"}
    )

    assert (asked.optimizer.lr, asked.optimizer.unfamiliar_lr) == (0.02, None)
    assert both.optimizer.unfamiliar_lr == 0.05
    assert recipes.load("modern/finetune-some", ["model.head=zero"], given).optimizer.unfamiliar_lr is None
    what = r"optimizer\.unfamiliar_lr is for model.head = 'refit', which is 'zero' here"
    with pytest.raises(VitError, match=what):
        recipes.load("finetune/default", ["optimizer.unfamiliar_lr=0.05"], given)


def test_unfamiliar_images_are_trained_on_as_with_that_rate_to_the_bit(photos, blind, tmp_path):
    at = "--set", "optimizer.unfamiliar_lr=0.05"
    summary = finetuned(blind, photos, tmp_path / "rule", *LAYERED, *at)
    finetuned(blind, photos, tmp_path / "typed", *LAYERED, "--lr", 0.05)
    stopped = tmp_path / "stopped"
    when_logged(stopped, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*words(blind, photos, stopped, *LAYERED, *at)).code == 143
    finetuned(blind, photos, stopped, *LAYERED, *at)

    assert summary["lr"] == 0.05
    tensors = [load_file(tmp_path / name / "model.safetensors") for name in ("rule", "typed", "stopped")]
    assert all(torch.equal(one, other[name]) for other in tensors[1:] for name, one in tensors[0].items())


@pytest.mark.slow
def test_two_processes_deliver_the_layered_head_of_one(photos, blind, tmp_path):
    for processes in (1, 2):
        out = tmp_path / str(processes)
        given = words(blind, photos, out, *LAYERED, "--set", "objective.class_weights=sqrt")
        ended = vit(*given, "--exact", "--num-processes", processes, timeout=300)
        assert ended.returncode == 0, ended.stderr
        assert summary_of(out)["refit"]["head_layers"] == LAYERS

    assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        ("--precision", "bf16", "--set", "objective.class_weights=sqrt"),
        ("--folds", "3"),
        ("--runs", "2", "--set", "train.average_runs=auto", "--set", "data.dev_fraction=0.25"),
        ("--lr", "0.01,0.02", "--set", "data.dev_fraction=0.25"),
        ("--set", "model.lora_rank=2"),
        ("--set", "train.patience=2", "--set", "data.dev_fraction=0.25", "--set", "eval.every=2"),
        ("--set", "schedule.image_sizes=[8,16]", "--set", "model.grad_checkpointing=true"),
        ("--compile",),
    ],
    ids=" ".join,
)
def test_other_ways_to_train_deliver_it_too(photos, blind, tmp_path, how):
    base = ("finetune", "--recipe", "finetune/default", "--res", 16, "--steps", 8, "--batch-size", 12)
    places = ("--ckpt", blind, "--dataset", photos, "--out", tmp_path / "run", "--quiet", "--json")
    ended = run(*base, *places, *LAYERED, *how)

    assert ended.code == 0, ended.err + ended.out
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["head.weight"].shape == (2, 4 * WIDTH)
    scored = run("evaluate", "--ckpt", tmp_path / "run", "--dataset", photos, "--quiet", "--json")
    assert scored.code == 0 and scored.json["top1"] > 0.8, scored.err
