"""Patch dropout against the network on the patches that are kept."""

import pytest
import timm
import torch

from tests.training.methods.conftest import refusal, tiny
from vitcli.errors import VitError
from vitcli.models.build import TransformerOptions, architecture, build


@pytest.mark.parametrize("posemb", ["1d", "2d", "sincos2d"])
def test_blocks_see_the_class_token_and_the_kept_patches_with_their_positions(posemb):
    plain, arch = tiny(posemb=posemb)
    model = build(arch, dropout=0.0, patch_dropout=0.4)
    model.load_state_dict(plain.state_dict())
    images, seen = torch.randn(3, 3, 32, 32), {}
    for name, network in (("all", plain), ("kept", model)):
        network.blocks[0].register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    torch.manual_seed(5)
    model.train()(images), plain(images)

    assert seen["all"].shape[1] == 17 and seen["kept"].shape[1] == 1 + 9  # of 16 patches, rounded down
    torch.manual_seed(5)
    places = torch.randn(3, 16).argsort(dim=1)[:, :9]
    for all_TD, kept_TD, places_of in zip(seen["all"], seen["kept"], places, strict=True):
        assert torch.equal(kept_TD, torch.cat([all_TD[:1], all_TD[1:][places_of]]))
    # Each image has its own, each draw another; evaluation sees all.
    assert len({tuple(sorted(places_of.tolist())) for places_of in places}) == 3
    assert torch.equal(model.eval()(images), plain.eval()(images))


def test_without_the_key_the_network_is_as_before():
    _, arch = tiny()
    assert type(build(arch, dropout=0.1).patch_drop) is torch.nn.Identity


@pytest.mark.parametrize("place", ["every_layer", "every_layer_shared"])
def test_positions_that_every_layer_adds_need_all_patches(place):
    options = TransformerOptions(posemb="2d", posemb_at=place, layers=2, hidden=32, heads=2)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=2, options=options)
    with pytest.raises(VitError, match="every layer adds their positions"):
        build(arch, dropout=0.0, patch_dropout=0.5)


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "resnetv2_50x1_bit"])
def test_a_network_without_patches_to_leave_out_is_refused(name):
    assert timm.is_model(name)
    arch = architecture(name, image_size=(32, 32), num_classes=2)
    with torch.device("meta"), pytest.raises(VitError, match="timm cannot build"):
        build(arch, dropout=0.0, patch_dropout=0.5)


@pytest.mark.parametrize("value", ["1", "-0.1", "1.5", "nan", "half", "true", "none", "{}", "0,5", '"0.5"'])
def test_what_is_no_fraction_is_refused(value):
    assert "model.patch_dropout" in refusal(f"model.patch_dropout={value}")


def test_patches_that_are_predicted_are_not_left_out():
    settings = (
        "model.patch_dropout=0.5", "objective.loss=masked_patch", "objective.patch_target=pixels",
        "objective.corrupted=0.5", "objective.masked=0.8", "objective.replaced=0.1",
    )  # fmt: skip
    assert "would leave out patches that" in refusal(*settings)
