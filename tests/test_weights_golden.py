"""The authors' checkpoints, read by us, give the authors' outputs; also at another resolution."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitcli.model import adapted, build
from vitcli.loading import load_into
from vitcli.weights import read_weights

SHARED = Path(os.environ.get("VIT_TEST_DATA", Path(__file__).parents[2] / "shared"))
GOLDEN, REAL = SHARED / "golden", SHARED / "data" / "checkpoints"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden data (VIT_TEST_DATA) is not here")
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real checkpoint (VIT_TEST_DATA) is not here")


def loaded(weights, arch=None, *, new_head: bool = False) -> torch.nn.Module:
    arch = arch or weights.architecture
    model = build(arch, dropout=0.0).eval()
    load_into(model, arch, weights, new_head=new_head)
    return model


def outputs(model: torch.nn.Module, images_BHWC: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and what the last layer was given."""
    last = model.head.head if hasattr(model.head, "head") else model.head
    given = []
    last.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    with torch.no_grad():
        logits_BK = model(torch.from_numpy(images_BHWC).permute(0, 3, 1, 2))
    return logits_BK, given[0]


def rel(ours: torch.Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max())


def plain_golden_models() -> dict[str, dict]:
    if not GOLDEN.is_dir():
        return {}
    models = json.loads((GOLDEN / "checkpoints" / "models.json").read_text())
    return {name: m for name, m in models.items() if m["classifier"] == "token" and not m.get("resnet")}


@needs_golden
@pytest.mark.parametrize("name", plain_golden_models())
def test_the_authors_files_give_the_authors_outputs_in_every_spelling(name):
    model = plain_golden_models()[name]
    images = np.load(GOLDEN / "inputs.npz")[model["inputs"]]
    golden = np.load(GOLDEN / "checkpoints" / f"{name}.out.npz")
    spellings = [
        model[key] for key in ("checkpoint", "linen_checkpoint", "big_vision_checkpoint") if key in model
    ]

    for file in spellings:
        weights = read_weights(str(GOLDEN / "checkpoints" / file))
        logits, pre_logits = outputs(loaded(weights), images)
        assert weights.architecture.image_size == (model["image_size"],) * 2
        assert (weights.format, weights.numerics.split(",")[0]) == ("official npz", "tanh GELU")
        assert rel(logits, golden["logits"]) < 2e-5
        assert rel(pre_logits, golden["pre_logits"]) < 2e-5


@needs_golden
@pytest.mark.parametrize("name", [name for name, m in plain_golden_models().items() if m.get("hires")])
def test_a_larger_image_gives_what_the_authors_fine_tuning_loader_gives(name):
    model = plain_golden_models()[name]
    weights = read_weights(str(GOLDEN / "checkpoints" / model["checkpoint"]))
    for hires in model["hires"]:
        keeps_head = hires["representation_size"] is not None
        num_classes = model["num_classes"] if keeps_head else hires["num_classes"]
        arch = adapted(weights.architecture, image_size=(hires["image_size"],) * 2, num_classes=num_classes)
        large = loaded(weights, replace(arch, pre_logits=keeps_head), new_head=not keeps_head)
        logits, pre_logits = outputs(large, np.load(GOLDEN / "inputs.npz")[hires["inputs"]])
        golden = np.load(GOLDEN / "checkpoints" / hires["file"])

        assert rel(large.pos_embed.detach(), golden["pos_embedding"]) < 1e-5
        assert rel(pre_logits, golden["pre_logits"]) < 2e-5
        assert keeps_head or not logits.any()


@needs_golden
@needs_real
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_real_trained_weights_give_the_authors_outputs(suffix):
    weights = read_weights(str(REAL / f"vit_ti16_augreg_in1k.{suffix}"))
    golden, inputs = np.load(GOLDEN / "real_weights.npz"), np.load(GOLDEN / "inputs.npz")
    about = json.loads((GOLDEN / "real_weights.json").read_text())
    logits, pre_logits = outputs(loaded(weights), inputs[about["inputs"]])

    assert (weights.architecture.name, weights.architecture.num_classes) == ("ViT-Ti/16", 1000)
    assert rel(logits, golden["logits"]) < 2e-5 and rel(pre_logits, golden["pre_logits"]) < 2e-5
    for hires in about["hires"]:
        arch = adapted(
            weights.architecture, image_size=(hires["image_size"],) * 2, num_classes=hires["classes"]
        )
        _, pre_logits = outputs(loaded(weights, arch, new_head=True), inputs[hires["inputs"]])
        assert rel(pre_logits, golden[f"{hires['tag']}/pre_logits"]) < 2e-5
