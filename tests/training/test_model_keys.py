"""Every key of a recipe's [model] section arrives at the network that is trained."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.conftest import data_section, run
from tests.folders import flat
from vitcli.evaluation.setup import settle_pixels
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.models.pos_embed import resample_posemb
from vitcli.training import finetune, pretrain
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights

PREPROCESSING = {
    "image_size": [32, 32], "resize": "square", "crop_fraction": 1.0, "interpolation": "bilinear",
    "antialias": True, "mean": [0.5] * 3, "std": [0.5] * 3, "decoder": "any",
}  # fmt: skip


@pytest.fixture
def started(monkeypatch, photos):
    """Runs a command up to its network, and gives that."""
    seen = []

    def run_no_further(command, resolved, options, make_model):
        from vitcli.data import dataset

        split, _ = dataset.open_train_and_eval(data_section(photos), seed=0)
        torch.manual_seed(0)
        seen.append(make_model(settle_pixels(resolved, command), split))
        return {"command": "recipes"}

    def start(command: str, *words: str):
        monkeypatch.setattr(finetune, "run", run_no_further)
        monkeypatch.setattr(pretrain, "run", run_no_further)
        settings = [word for setting in words for word in ("--set", setting)]
        recipe = "pretrain/demo" if command == "pretrain" else "finetune/default"
        outcome = run(
            command,
            "--recipe",
            recipe,
            "--dataset",
            str(photos),
            "--res",
            "32",
            "--lr",
            "0.1",
            "--json",
            *settings,
        )
        assert outcome.code == 0, outcome.out + outcome.err
        return seen.pop()

    return start


FRESH = ("model.ckpt=random", "model.name=ViT-demo/8")
DEMO = ("model.name=ViT-demo/8",)


def dropped(model: nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, nn.Dropout)}


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("model.gelu=erf", "gelu", "erf"),
        ("model.classifier=gap", "classifier", "gap"),
        ("model.posemb=2d", "posemb", "2d"),
        ("model.posemb_at=every_layer", "posemb_at", "every_layer"),
    ],
)
def test_keys_of_the_architecture_arrive(started, setting, field, value):
    assert getattr(started("finetune", *FRESH, setting).arch, field) == value
    start = started("pretrain", "model.name=ViT-demo/8", setting)
    assert getattr(start.arch, field) == value and start.arch.num_classes == 2


@pytest.mark.parametrize("words", [("finetune", *FRESH), ("pretrain", *DEMO)], ids=["finetune", "pretrain"])
def test_sizes_of_a_transformer_arrive(started, words):
    sizes = ("model.layers=2", "model.hidden=64", "model.mlp=96", "model.heads=4", "model.patch_size=4")
    start = started(*words, *sizes)

    assert start.arch.name == "ViT-2x64/4"
    assert len(start.model.blocks) == 2 and start.model.blocks[0].attn.num_heads == 4
    assert start.model.blocks[0].mlp.fc1.weight.shape == (96, 64)


@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_dropout_drop_path_and_initialisation_arrive(started, command):
    words = FRESH if command == "finetune" else DEMO
    plain = started(command, *words).model
    changed = started(command, *words, "model.dropout=0.2", "model.drop_path=0.1", "model.init=timm").model

    assert dropped(plain) == {0.0} and dropped(changed) >= {0.2}
    assert changed.blocks[-1].drop_path1.drop_prob == pytest.approx(0.1)
    ours, timms = (model.blocks[0].attn.qkv.weight.std().item() for model in (plain, changed))
    assert timms == pytest.approx(0.02, rel=0.1) and ours > 0.05


def test_pre_logits_and_the_heads_bias_arrive_in_pre_training(started):
    model = started("pretrain", *DEMO, "model.pre_logits=true", "objective.head_bias=-10").model

    assert model.head.pre_logits.weight.any()
    assert model.head.head.bias.tolist() == [-10, -10] and not model.head.head.weight.any()


def test_masked_patches_are_learnt_from_any_folder_of_images_and_no_word_is_said_of_classes(tmp_path):
    flat(tmp_path / "photos", 8)
    target = ("corrupted=0.5", "masked=0.8", "replaced=0.1", "patch_target=mean_color", "loss=masked_patch")
    settings = [word for setting in target for word in ("--set", f"objective.{setting}")]
    words = (
        "pretrain",
        "--recipe",
        "pretrain/demo",
        "--dataset",
        tmp_path / "photos",
        "--model",
        "ViT-demo/8",
    )

    outcome = run(*words, *settings, "--set", "model.layers=1", "--steps", 1, "--batch-size", 4, "--verbose",
                  "--set", "data.dev_fraction=0.3", "--out", tmp_path / "run")  # fmt: skip

    assert outcome.code == 0, outcome.out + outcome.err
    assert "training on 6 images, 2 to score" in outcome.err
    assert "class" not in outcome.err and "too few to train" not in outcome.err
    refused = run(*words, "--steps", 1, "--dry-run")
    assert refused.code == 3 and "no class folders" in refused.err


def test_masked_patches_get_their_own_head(started):
    settings = ("objective.loss=masked_patch", "objective.patch_target=pixels", "objective.corrupted=0.25")
    start = started("pretrain", *DEMO, *settings, "objective.masked=1.0", "objective.replaced=0.0")

    assert (start.model.target, start.arch.num_classes) == ("pixels", 0)
    assert start.model.draw(3).places_BM.shape == (3, 4)


def test_a_checkpoints_position_embedding_is_resampled_as_the_recipe_says(started, tmp_path):
    arch = architecture("ViT-demo/8", image_size=(64, 48), num_classes=3)
    state = {name: torch.randn_like(t) for name, t in build(arch, dropout=0.0).state_dict().items()}
    write_weights(
        tmp_path, state, WeightsInfo(arch, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    for method in ("paper", "timm"):
        words = (f"model.ckpt={tmp_path}", f"model.posemb_resample={method}", "model.gelu=erf")
        start = started("finetune", *words, "model.dropout=0.3")
        expected = resample_posemb(state["pos_embed"], (8, 6), (4, 4), method=method)

        assert torch.equal(start.model.pos_embed, expected)
        assert start.arch == replace(arch, image_size=(32, 32), num_classes=2, gelu="erf")
        assert dropped(start.model) >= {0.3} and not start.model.head.weight.any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("model.ckpt=demo", "model.posemb=2d"), "a checkpoint has its own posemb"),
        (("model.ckpt=demo", "model.pre_logits=true"), "one layer of zeros"),
        (("model.ckpt=demo", "objective.head_bias=-1"), "one layer of zeros"),
        (("model.ckpt=random",), "fresh weights need the name of a network"),
    ],
)
def test_settings_that_do_not_apply_to_fine_tuning_are_refused(photos, settings, words):
    more = [word for setting in settings for word in ("--set", setting)]
    outcome = run("finetune", "--dataset", str(photos), "--recipe", "finetune/default", "--lr", "0.1", *more)

    assert outcome.code == 2 and words in outcome.err


def test_evaluation_takes_the_recipes_gelu_and_resampling(photos, tmp_path):
    arch = architecture(
        "ViT-demo/8", image_size=(64, 64), num_classes=2, options=TransformerOptions(pre_logits=True)
    )
    torch.manual_seed(0)
    state = {name: torch.randn_like(t) * 0.3 for name, t in build(arch, dropout=0.0).state_dict().items()}
    write_weights(
        tmp_path, state, WeightsInfo(arch, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    words = ("evaluate", "--ckpt", tmp_path, "--dataset", photos, "--res", "48", "--json", "--quiet")
    scores = [
        run(*words, *more).json["loss"]
        for more in ((), ("--set", "model.gelu=erf"), ("--set", "model.posemb_resample=timm"))
    ]

    assert len(set(scores)) == 3


def test_weights_without_a_head_name_no_class(photos, tmp_path):
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=0)
    state = build(arch, dropout=0.0).state_dict()
    write_weights(
        tmp_path, state, WeightsInfo(arch, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    for words in (("predict", str(photos / "test")), ("evaluate", "--dataset", str(photos))):
        outcome = run(*words, "--ckpt", tmp_path, "--quiet")
        assert outcome.code in (3, 4) and outcome.out == ""
