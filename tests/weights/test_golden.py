"""The authors' checkpoints, read by us, give the authors' outputs; also at another resolution."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from vitcli.models.build import TransformerOptions, adapted, architecture, build
from vitcli.models.flops import num_params
from vitcli.weights.io import read_weights
from vitcli.weights.load import load_into

GOLDEN, REAL = SHARED / "golden", SHARED / "data" / "checkpoints"
SPELLINGS = ("checkpoint", "linen_checkpoint", "big_vision_checkpoint")
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


def golden_models() -> dict[str, dict]:
    index = GOLDEN / "checkpoints" / "models.json"
    return json.loads(index.read_text()) if index.is_file() else {}


def tiny_models_first() -> list:
    """All of them; the trained one, which takes a third of a second, is of the slow lane."""
    return [
        name if name.startswith("tiny") else pytest.param(name, marks=pytest.mark.slow)
        for name in golden_models()
    ]


@needs_golden
@pytest.mark.parametrize("name", golden_models())
def test_the_authors_files_give_the_authors_outputs_in_every_spelling(name):
    about = golden_models()[name]
    images = np.load(GOLDEN / "inputs.npz")[about["inputs"]]
    golden = np.load(GOLDEN / "checkpoints" / f"{name}.out.npz")
    files = [about[key] for key in about if key in SPELLINGS]

    for file in files:
        weights = read_weights(str(GOLDEN / "checkpoints" / file))
        model = loaded(weights)
        logits, pre_logits = outputs(model, images)
        assert weights.architecture.image_size == (about["image_size"],) * 2
        assert weights.architecture.classifier == about["classifier"]
        assert (weights.format, weights.numerics.split(",")[0]) == ("official npz", "tanh GELU")
        assert sum(parameter.numel() for parameter in model.parameters()) == about["parameters"]
        assert rel(logits, golden["logits"]) < 2e-5  # hybrids too: they have the authors' epsilons
        assert rel(pre_logits, golden["pre_logits"]) < 2e-5
    assert files


@needs_golden
@pytest.mark.parametrize("name", tiny_models_first())
def test_the_tokens_on_the_way_are_the_authors(name):
    about = golden_models()[name]
    golden = np.load(GOLDEN / "checkpoints" / f"{name}.out.npz")
    model = loaded(read_weights(str(GOLDEN / "checkpoints" / about["checkpoint"])))
    images_BCHW = torch.from_numpy(np.load(GOLDEN / "inputs.npz")[about["inputs"]]).permute(0, 3, 1, 2)
    first = {}
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda _, __, tokens_BTD, i=i: first.update({i: tokens_BTD[:, 0]}))
    with torch.no_grad():
        tokens_BTD = model.forward_features(images_BCHW)
        grid_NHWD = model.patch_embed(images_BCHW[:1]).unflatten(1, model.patch_embed.grid_size)

    assert rel(tokens_BTD[:, 0], golden["encoder_norm_token0"]) < 2e-5
    assert rel(tokens_BTD.mean(dim=1), golden["encoder_norm_token_mean"]) < 2e-5
    assert rel(grid_NHWD[0], golden["patch_embedding_image0"]) < 2e-5
    for i in range(about["layers"]):
        assert rel(first[i], golden[f"block{i}_token0"]) < 2e-5


@needs_golden
@pytest.mark.parametrize("name", [name for name, about in golden_models().items() if about.get("hires")])
def test_a_larger_image_gives_what_the_authors_fine_tuning_loader_gives(name):
    about = golden_models()[name]
    weights = read_weights(str(GOLDEN / "checkpoints" / about["checkpoint"]))
    for hires in about["hires"]:
        keeps_head = hires["representation_size"] is not None
        num_classes = about["num_classes"] if keeps_head else hires["num_classes"]
        arch = adapted(weights.architecture, image_size=(hires["image_size"],) * 2, num_classes=num_classes)
        large = loaded(weights, replace(arch, pre_logits=keeps_head), new_head=not keeps_head)
        logits, pre_logits = outputs(large, np.load(GOLDEN / "inputs.npz")[hires["inputs"]])
        golden = np.load(GOLDEN / "checkpoints" / hires["file"])

        np.testing.assert_allclose(large.pos_embed.detach(), golden["pos_embedding"], atol=1e-5, rtol=0)
        assert rel(pre_logits, golden["pre_logits"]) < 2e-5
        assert keeps_head or not logits.any()


@needs_golden
@pytest.mark.slow
def test_every_configuration_of_the_authors_has_their_number_of_parameters():
    official = json.loads((GOLDEN / "param_counts.json").read_text())
    for name, about in official.items():
        counts = [
            num_params(
                architecture(
                    name.removesuffix("-gap-norep"),
                    image_size=(224, 224),
                    num_classes=num_classes,
                    options=TransformerOptions(classifier=about["classifier"]),
                )
            )
            for num_classes in (1000, 0)
        ]

        assert counts[0] == about["parameters_1000_classes"], name
        assert counts[0] - counts[1] == about["head_parameters"], name
    assert official


@needs_golden
@needs_real
@pytest.mark.parametrize("suffix", [pytest.param("npz", marks=pytest.mark.slow), "safetensors"])
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
