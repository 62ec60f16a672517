"""Learning rates that fall with depth, against timm's own grouping, and in a run."""

import json
import warnings

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.optim import param_groups_layer_decay
from torch import nn

from tests.training.methods.conftest import ADAM, fine_tune, refusal
from vitcli.errors import VitError
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.training.methods.partial import depths_of, lr_scales
from vitcli.training.optim import parameter_groups

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2}
NETWORKS = {
    "vit_tiny_patch16_224": {"img_size": 32, **TINY},
    "vit_base_patch32_clip_224": {"img_size": 64, **TINY},  # norm before the blocks
    "vit_base_patch16_siglip_224": {"img_size": 32, **TINY},  # attention pooling
    "vit_small_patch14_reg4_dinov2": {"img_size": 28, **TINY},
    "deit_tiny_distilled_patch16_224": {"img_size": 32, **TINY},
    "beit_base_patch16_224": {"img_size": 32, **TINY},
    "eva02_tiny_patch14_224": {"img_size": 28, **TINY},
    "naflexvit_base_patch16_gap": TINY,
    "vit_tiny_r_s16_p8_224": {"img_size": 32, **TINY},  # a hybrid
    "resnetv2_50x1_bit": {},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_parameter_has_the_rate_that_timm_gives_it(name):
    with warnings.catch_warnings(action="ignore"), torch.device("meta"):
        model = timm.create_model(name, num_classes=3, **NETWORKS[name])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    of_timm = param_groups_layer_decay(model, layer_decay=0.7)
    ours = parameter_groups(model, weight_decay=0.3, decay_on="matrices", layer_decay=0.7)

    def scales(groups: list[dict]) -> dict[str, float]:
        return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}

    assert scales(ours) == scales(of_timm) == lr_scales(model, 0.7)
    assert len(scales(ours)) == len(names) and scales(ours).keys() == set(names.values())
    # The decay is that of a single rate.
    decays = [
        {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
        for groups in (ours, parameter_groups(model, weight_decay=0.3, decay_on="matrices", layer_decay=1.0))
    ]
    assert decays[0] == decays[1]


def test_the_embedding_the_blocks_and_the_head_of_a_vit_by_hand():
    options = TransformerOptions(posemb="2d", layers=3, hidden=32, heads=2)
    with torch.device("meta"):
        arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=2, options=options)
        scales = lr_scales(build(arch, dropout=0.0), 0.5)

    by_hand = {
        "patch_embed.proj.weight": 1 / 16,
        "cls_token": 1 / 16,
        "positions.rows": 1 / 16,  # the paper's Table 8, unknown to timm
        "blocks.0.attn.qkv.weight": 1 / 8,
        "blocks.2.mlp.fc2.bias": 1 / 2,
        "norm.weight": 1 / 2,
        "head.weight": 1,
    }
    assert {name: scales[name] for name in by_hand} == by_hand


def test_a_network_whose_order_timm_does_not_know_is_refused():
    with pytest.raises(VitError, match="no order that timm knows"):
        depths_of(nn.Linear(2, 2))


def test_a_run_with_falling_rates_logs_the_recipes_rate(ckpt, photos, tmp_path):
    records, weights = [], [load_file(ckpt / "model.safetensors")]
    for layer_decay in (1.0, 1e-6):
        out = tmp_path / str(layer_decay)
        words = (*ADAM, "--set", f"optimizer.layer_decay={layer_decay}")
        fine_tune(*words, out=out, ckpt=ckpt, photos=photos, steps=2)
        records.append([json.loads(line) for line in (out / "metrics.jsonl").open()])
        weights.append(load_file(out / "model.safetensors"))
    before, one_rate, falling = weights

    rates = [[record["lr"] for record in of_run if "lr" in record] for of_run in records]
    assert rates[0] == rates[1] and len(rates[0]) == 2
    # With a factor of a millionth the head alone moves, and as it does with one rate.
    moved = {name for name in before if not torch.allclose(falling[name], before[name], atol=1e-6)}
    assert moved == {"head.weight", "head.bias"}
    assert torch.equal(falling["head.bias"].sign(), one_rate["head.bias"].sign())
    block = "blocks.0.mlp.fc1.weight"
    assert not torch.allclose(one_rate[block], before[block], atol=1e-3)


@pytest.mark.parametrize("value", ["0", "1.5", "-0.5", "nan", "inf", "true", "a", "{}", '"0.7"', "none"])
def test_what_is_no_factor_is_refused(value):
    assert "optimizer.layer_decay" in refusal(f"optimizer.layer_decay={value}")
