"""A small checkpoint to fine-tune, and a run that is resumed from one of its own checkpoints."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import run
from vitcli import recipe as recipes
from vitcli.errors import VitError
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights

PREPROCESSING = {
    "image_size": [32, 32], "resize": "square", "crop_fraction": 1.0, "interpolation": "bilinear",
    "antialias": True, "mean": [0.5] * 3, "std": [0.5] * 3, "decoder": "any",
}  # fmt: skip
QUICK = ("--batch-size", 8, "--precision", "fp32", "--set", "train.log_every=1")
SAVED = ("--set", "train.save_every=1", "--set", "train.keep_checkpoints=9")
ADAM = ("--set", "optimizer.name=adam", "--set", "optimizer.weight_decay=0.05")


def tiny(**options):
    """A ViT of two layers and width 32, and its architecture, with random weights of some size."""
    sizes = {"layers": 2, "hidden": 32, "heads": 2, **options}
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=2, options=TransformerOptions(**sizes))
    torch.manual_seed(0)
    model = build(arch, dropout=0.0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model, arch


@pytest.fixture(scope="session")
def ckpt(tmp_path_factory) -> Path:
    """The folder of a small checkpoint."""
    folder, (model, arch) = tmp_path_factory.mktemp("ckpt"), tiny()
    state = model.state_dict()
    write_weights(
        folder, state, WeightsInfo(arch, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    return folder


def begun(ckpt: Path, photos: Path) -> tuple[object, ...]:
    """The words that begin every `vit finetune` of these tests."""
    words = ("finetune", "--recipe", "finetune/default", "--ckpt", ckpt, "--dataset", photos)
    return (*words, "--lr", 0.02, "--quiet", "--json")


def fine_tune(*words: object, out: Path, ckpt: Path, photos: Path, steps: int = 3) -> dict:
    """Run `vit finetune` on a checkpoint; return its summary."""
    start = begun(ckpt, photos)
    outcome = run(*start, *QUICK, "--steps", steps, "--out", out, *words)
    assert outcome.code == 0, outcome.out + outcome.err
    return outcome.json


def refusal(*settings: str, recipe: str = "finetune/default") -> str:
    """Return what is wrong with a recipe with these settings."""
    shorthands = {"data.dataset": "photos", "model.ckpt": "demo", "optimizer.lr": 0.1}
    with pytest.raises(VitError) as refused:
        recipes.load(recipe, settings, shorthands)
    return refused.value.message


def only_with_checkpoint(run_dir: Path, step: int, copy: Path) -> Path:
    """Copy an unfinished run as it was after a step."""
    shutil.copytree(run_dir, copy)
    for finished in ("summary.json", "model.safetensors"):
        (copy / finished).unlink()
    for folder in (copy / "checkpoints").iterdir():
        if folder.name != f"step_{step:07d}":
            shutil.rmtree(folder)
    return copy
