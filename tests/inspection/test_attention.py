"""What a network attends to while it computes: the authors' maps and weights, and networks of other kinds."""

import json

import numpy as np
import pytest
import timm
import torch

from tests.conftest import SHARED
from vitcli.inspection import analysis
from vitcli.inspection.attention import (
    CLASS_TOKEN,
    PATCHES,
    AttentionLayout,
    attention_layers,
    feature_map,
    probe_attention_layout,
    record_attention,
)
from vitcli.inspection.collect import patch_positions, rgb_filters
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.weights.io import read_weights
from vitcli.weights.load import load

GOLDEN = SHARED / "golden"
CASES = json.loads((GOLDEN / "attention.json").read_text()) if GOLDEN.is_dir() else {}
MODELS = [name for name, about in CASES.items() if about["source"] == "reference model"]
REAL = SHARED / "data" / "checkpoints" / "vit_ti16_augreg_in1k.npz"
SMALL = dict(layers=2, hidden=48, heads=3, mlp=64)


def small(name: str = "ViT-Ti/16", size: tuple[int, int] = (32, 48), **more):
    """A network of random weights, and its architecture."""
    torch.manual_seed(0)
    arch = architecture(name, image_size=size, num_classes=3, options=TransformerOptions(**more))
    return build(arch, dropout=0.0).eval(), arch


def maps_of(model, images: torch.Tensor) -> list[torch.Tensor]:
    """(B, A, T, T) of each layer."""
    found: list[torch.Tensor] = []

    def see(number: int, weights: torch.Tensor) -> None:
        assert number == len(found)
        found.append(weights)

    with torch.no_grad(), record_attention(model, see):
        model.forward_features(images)
    return found


def inputs(name: str, count: int) -> torch.Tensor:
    return torch.from_numpy(np.load(GOLDEN / "inputs.npz")[name][:count]).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("case", MODELS)
def test_the_weights_are_those_of_the_authors_network(case):
    model, _, _ = load(read_weights(str(GOLDEN / "checkpoints" / f"{case}.npz")))
    about = CASES[case]

    found = maps_of(model.eval(), inputs(about["inputs"], about["images"]))

    expected = np.load(GOLDEN / "attention.npz")[f"{case}/attention"]
    np.testing.assert_allclose(torch.stack(found), expected, rtol=0, atol=2e-5)


@pytest.mark.skipif(not REAL.is_file(), reason="real weights are not here; VIT_TEST_DATA names their folder")
def test_real_weights_look_as_far_and_at_the_same_as_in_the_authors_code():
    model, arch, _ = load(read_weights(str(REAL)))
    how, expected = probe_attention_layout(model.eval(), arch), np.load(GOLDEN / "real_weights.npz")
    maps = maps_of(model, inputs("x224", 4))
    distances = analysis.patch_distances(how.grid, how.patch_size).float()

    for renormalise, ending in ((True, ""), (False, "_not_renormalised")):
        found = [
            analysis.attention_distance(one, distances, num_prefix=1, renormalise=renormalise).mean(dim=0)
            for one in maps
        ]
        np.testing.assert_allclose(
            torch.stack(found), expected[f"attention_distance{ending}"], rtol=0, atol=0.01
        )
    for kind in ("residual", "plain"):
        rollout = None
        for one in maps:
            rollout = analysis.rollout_layer(rollout, one, residual=kind == "residual")
        seen = analysis.output_attention(rollout, num_prefix=1, reads_token=True).unflatten(1, (14, 14))
        wanted = expected[f"rollout_{kind}_class_to_patches"]
        np.testing.assert_allclose(seen, wanted, rtol=0, atol=1e-4 * wanted.max())


def test_fused_attention_is_off_only_while_it_is_watched():
    model, _ = small(**SMALL)
    layers = attention_layers(model)
    assert [layer.fused_attn for layer in layers] == [True, True]  # else the rest shows nothing
    images = torch.rand(2, 3, 32, 48)
    with torch.no_grad():
        unwatched = model(images)

    with torch.no_grad(), record_attention(model, lambda number, weights: None):
        assert [layer.fused_attn for layer in layers] == [False, False]
        np.testing.assert_allclose(model(images), unwatched, atol=1e-5)

    assert [layer.fused_attn for layer in layers] == [True, True]
    assert not any(layer.attn_drop._forward_hooks for layer in layers)


def test_a_failure_while_it_is_watched_leaves_the_network_as_it_was():
    model, _ = small(**SMALL)

    with pytest.raises(ValueError, match="seen"), record_attention(model, lambda number, weights: 1 / 0):
        raise ValueError("seen")

    assert all(layer.fused_attn and not layer.attn_drop._forward_hooks for layer in attention_layers(model))


def test_every_row_of_the_weights_sums_to_one():
    model, _ = small(**SMALL)

    for weights in maps_of(model, torch.rand(2, 3, 32, 48)):
        assert weights.shape == (2, 3, 7, 7)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7))


@pytest.mark.parametrize(
    ("name", "size", "more", "expected"),
    [
        ("ViT-Ti/16", (32, 48), SMALL, AttentionLayout(2, 3, 1, (2, 3), 16, True, CLASS_TOKEN)),
        (
            "ViT-Ti/16",
            (32, 48),
            SMALL | {"classifier": "gap"},
            AttentionLayout(2, 3, 0, (2, 3), 16, False, PATCHES),
        ),
        (
            "ViT-Ti/16",
            (32, 48),
            SMALL | {"posemb": "relative"},
            AttentionLayout(2, 3, 1, (2, 3), 16, True, CLASS_TOKEN),
        ),
        ("R+ViT-Ti/16", (64, 96), SMALL, AttentionLayout(2, 3, 1, (2, 3), 32, True, CLASS_TOKEN)),
        pytest.param(
            "vit_small_patch14_reg4_dinov2",
            (28, 42),
            {},
            AttentionLayout(12, 6, 5, (2, 3), 14, True, CLASS_TOKEN),
            marks=pytest.mark.slow,
        ),
        ("vit_wee_patch16_reg1_gap_256", (32, 48), {}, AttentionLayout(14, 4, 1, (2, 3), 16, False, PATCHES)),
        (
            "deit_tiny_distilled_patch16_224",
            (32, 48),
            {},
            AttentionLayout(12, 3, 2, (2, 3), 16, True, CLASS_TOKEN),
        ),
    ],
)
def test_grid_stride_and_prefix_tokens_are_those_of_the_network(name, size, more, expected):
    model, arch = small(name, size, **more)

    assert probe_attention_layout(model, arch) == expected


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("resnet10t", (64, 64), "has no blocks of one self-attention each"),
        pytest.param(
            "swin_tiny_patch4_window7_224",
            (224, 224),
            "has no blocks of one self-attention each",
            marks=pytest.mark.slow,
        ),
        ("cait_xxs24_224", (224, 224), "attend over other things than 14x14 patches"),
    ],
)
def test_a_network_without_attention_over_patches_is_told_why(name, size, reason):
    model, arch = small(name, size)
    if name.startswith("cait") and not hasattr(model, "num_prefix_tokens"):
        pytest.skip("this timm does not say that CaiT's class token is no part of these blocks")

    assert reason in probe_attention_layout(model, arch)


def test_a_network_that_pools_in_its_own_way_is_not_said_to_take_the_mean():
    model, arch = small(classifier="gap", **SMALL)
    model.global_pool = "map"

    how = probe_attention_layout(model, arch)

    assert how.read_from == "mean of the patches, in place of its own pooling" and not how.reads_token


def test_the_position_embeddings_of_every_kind_stand_for_the_patches_alone():
    for posemb, place in (
        ("1d", "stem"), ("2d", "stem"), ("sincos2d", "stem"),
        ("1d", "every_layer"), ("2d", "every_layer_shared"),
    ):  # fmt: skip
        model, _ = small(posemb=posemb, posemb_at=place, **SMALL)
        own = model.blocks[0] if place == "every_layer" else model
        table = model.pos_embed if (posemb, place) == ("1d", "stem") else own.positions()

        assert torch.equal(patch_positions(model), table[0, 1:])
        assert patch_positions(model).shape == (6, 48)


@pytest.mark.parametrize("posemb", ["none", "relative"])
def test_a_network_that_adds_nothing_for_places_has_no_positions_to_compare(posemb):
    model, _ = small(posemb=posemb, **SMALL)

    assert patch_positions(model) == "no table of position embeddings is added to its patches"


def test_a_position_table_without_rows_for_registers_is_of_patches_too():
    model, _ = small(
        "vit_small_patch14_reg4_dinov2", (28, 42)
    )  # a row for the class token, none for registers

    assert torch.equal(patch_positions(model), model.pos_embed[0, -6:])


def first_layer(name: str) -> torch.nn.Module:
    if "Conv2d" in name:
        torch.manual_seed(0)
        first = getattr(timm.layers, name)(3, 8, 5)
        if "Scaled" in name:
            torch.nn.init.uniform_(first.gain, 0.2, 3.0)
        return first
    model, _ = small(name, (64, 64))
    return next(part for part in model.modules() if isinstance(part, torch.nn.Conv2d))


@pytest.mark.parametrize(
    "name", ["R+ViT-Ti/16", "ViT-Ti/16", "StdConv2d", "ScaledStdConv2d", "ScaledStdConv2dSame"]
)
def test_the_filters_are_what_the_first_layer_makes_of_single_pixels(name):
    """A second way to them: one white pixel of one channel at a time, through the layer itself."""
    first = first_layer(name)
    filters = rgb_filters(torch.nn.Sequential(first))
    height, width = filters.shape[2:]
    if hasattr(first, "same_pad"):
        first.same_pad = False
    first.padding, first.bias = (0, 0), None
    pixels = torch.eye(3 * height * width).reshape(-1, 3, height, width)

    with torch.no_grad():
        made = first(pixels).flatten(1).T.reshape(-1, 3, height, width)

    np.testing.assert_allclose(filters, made, atol=2e-3 * float(made.abs().max()))


def test_features_by_place_are_those_of_the_patches():
    model, _ = small(**SMALL)
    with torch.no_grad():
        encoded = model.forward_features(torch.rand(2, 3, 32, 48))
        resnet, _ = small("resnet18", (64, 96))
        of_resnet = resnet.forward_features(torch.rand(2, 3, 64, 96))

    assert torch.equal(feature_map(model, encoded)[:, 1, 2], encoded[:, 1 + 5])
    assert torch.equal(feature_map(resnet, of_resnet)[:, 1, 2], of_resnet[:, :, 1, 2])
    assert feature_map(model, [encoded]) is None
    assert feature_map(model, encoded[:, :-1]) is None  # five patches are not two rows of three
