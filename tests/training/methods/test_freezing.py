"""Frozen parts: no gradient, no state, no decay, no drawing, no bit changed; against timm's own layers."""

import pytest
import timm
import torch
from safetensors.torch import load_file

from tests.conftest import run
from tests.training.methods.conftest import ADAM, SAVED, fine_tune, only_with_checkpoint, refusal, tiny
from tests.training.test_finetune import fingerprint
from vitcli.errors import VitError
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.training.methods.partial import freeze
from vitcli.training.optim import parameter_groups

EMBEDDING = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}


def trained(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("part", [1, 2, "backbone"])
def test_the_parts_by_hand(part):
    model, _ = tiny()
    names = {name for name, _ in model.named_parameters()}
    freeze(model, part)

    blocks = tuple(f"blocks.{number}." for number in range(2 if part == "backbone" else part))
    rest = {name for name in names - EMBEDDING if not name.startswith(blocks)}
    assert trained(model) == ({"head.weight", "head.bias"} if part == "backbone" else rest)
    groups = parameter_groups(model, weight_decay=0.1, decay_on="all", layer_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == len(trained(model))


@pytest.mark.parametrize("posemb", ["2d", "sincos2d"])
def test_positions_of_our_own_are_frozen_with_the_embedding(posemb):
    model, _ = tiny(posemb=posemb)
    freeze(model, 1)

    assert not any(name.startswith("positions") for name in trained(model))
    assert not model.train().positions.training or posemb == "sincos2d"


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_r_s16_p8_224",
        "deit_tiny_distilled_patch16_224",
        "vit_base_patch16_siglip_224",
        "resnetv2_50x1_bit",
    ],
)
def test_all_but_the_head_of_other_networks(name):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=3)
    freeze(model, "backbone")
    model.train()

    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    assert {id(p) for p in model.parameters() if p.requires_grad} == {
        id(p) for head in heads for p in head.parameters()
    }
    kinds = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.GroupNorm)
    assert not any(module.training for module in model.modules() if isinstance(module, kinds))


def test_a_frozen_part_draws_nothing_and_autograd_keeps_nothing_of_it():
    options = TransformerOptions(layers=3, hidden=32, heads=2)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=2, options=options)
    model, images = build(arch, dropout=0.5, drop_path=0.5), torch.randn(4, 3, 32, 32)
    freeze(model, 2)
    model.eval()
    model.train()
    inputs = []
    model.blocks[2].register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    for _ in range(2):
        model(images)

    assert torch.equal(*inputs) and not inputs[0].requires_grad
    assert model.blocks[2].training and model.blocks[2].drop_path1.training


@pytest.mark.parametrize("part", [3, 99])
def test_more_blocks_than_there_are_is_refused(part):
    with pytest.raises(VitError, match=f"has 2 blocks, of which {part}"):
        freeze(tiny()[0], part)
    with pytest.raises(VitError, match="has no blocks"):
        freeze(timm.create_model("resnetv2_50x1_bit", device="meta"), 1)


@pytest.mark.parametrize("checkpointed", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_run_leaves_the_frozen_bits_and_resumes(ckpt, photos, tmp_path, checkpointed):
    words = (*ADAM, "--set", "model.freeze=1", "--set", "model.dropout=0.1", "--set", "optimizer.average=0.9")
    words = (*words, *SAVED, "--set", f"model.grad_checkpointing={checkpointed}")
    fine_tune(*words, out=tmp_path / "run", ckpt=ckpt, photos=photos)

    before, after = load_file(ckpt / "model.safetensors"), load_file(tmp_path / "run/model.safetensors")
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == EMBEDDING | {name for name in before if name.startswith("blocks.0.")}
    kept = load_file(tmp_path / "run/checkpoints/step_0000003/optimizer.safetensors")
    assert {name.rpartition("/")[0] for name in kept} == before.keys() - same
    resumed = only_with_checkpoint(tmp_path / "run", 1, tmp_path / "resumed")
    fine_tune(*words, out=resumed, ckpt=ckpt, photos=photos)
    assert fingerprint(resumed) == fingerprint(tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.freeze=-1", "model.freeze is -1"),
        ("model.freeze=1.5", "model.freeze is 1.5"),
        ("model.freeze=all", 'model.freeze is "all"'),
        ("model.freeze=true", "model.freeze is true"),
        ("model.freeze=none", 'model.freeze is "none"'),
        ("model.freeze={a=1}", "model.freeze is"),
        ("model.freze=1", "did you mean"),
    ],
)
def test_what_cannot_be_frozen_is_refused(setting, words):
    assert words in refusal(setting)


@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_fresh_weights_are_not_frozen(photos, tmp_path, command):
    words = ("--ckpt", "random") if command == "finetune" else ("--recipe", "pretrain/demo")
    start = (
        command,
        *words,
        "--model",
        "ViT-demo/8",
        "--dataset",
        photos,
        "--lr",
        0.02,
        "--res",
        16,
        "--json",
    )
    outcome = run(*start, "--out", tmp_path / "run", "--set", "model.freeze=1")

    assert outcome.code == 2 and "fresh weights" in outcome.json["error"]["message"]
