"""Sizes of the models: the table of paper.md section 1.2, typed in once more."""

import json

import pytest

from tests.conftest import SHARED
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture
from vitcli.models.flops import activation_bytes
from vitcli.models.variants import (
    VARIANTS,
    find_variant,
    forward_macs,
    num_params,
    resized,
    variant_of_timm,
    vit_args,
)

GOLDEN = SHARED / "golden"

PARAMS_AT_224 = {  # without a head, with 1,000 classes, with 21,843 classes
    "ViT-Ti/16": (5_524_416, 5_717_416, 9_740_115),
    "ViT-S/32": (22_493_952, 22_878_952, 30_903_507),
    "ViT-S/16": (21_665_664, 22_050_664, 30_075_219),
    "ViT-B/32": (87_455_232, 88_224_232, 104_252_499),
    "ViT-B/16": (85_798_656, 86_567_656, 102_595_923),
    "ViT-B/8": (85_807_872, 86_576_872, 102_605_139),
    "ViT-L/32": (305_510_400, 306_535_400, 327_899_475),
    "ViT-L/16": (303_301_632, 304_326_632, 325_690_707),
    "ViT-H/14": (630_764_800, 632_045_800, 658_745_683),
}
GMACS = {
    ("ViT-Ti/16", 224): 1.253,
    ("ViT-Ti/16", 384): 4.682,
    ("ViT-S/32", 224): 1.143,
    ("ViT-S/32", 384): 3.443,
    ("ViT-S/16", 224): 4.598,
    ("ViT-S/16", 384): 15.490,
    ("ViT-B/32", 224): 4.408,
    ("ViT-B/32", 384): 13.043,
    ("ViT-B/16", 224): 17.563,
    ("ViT-B/16", 384): 55.484,
    ("ViT-B/8", 224): 78.148,
    ("ViT-B/8", 384): 294.04,
    ("ViT-L/32", 224): 15.377,
    ("ViT-L/32", 384): 45.275,
    ("ViT-L/16", 224): 61.554,
    ("ViT-L/16", 384): 191.065,
    ("ViT-L/16", 512): 361.985,
    ("ViT-H/14", 224): 167.294,
    ("ViT-H/14", 378): 503.48,
    ("ViT-H/14", 518): 1016.7,
}


@pytest.mark.parametrize("name", PARAMS_AT_224)
def test_parameter_counts_are_those_of_the_paper_table(name):
    counts = tuple(num_params(VARIANTS[name], (224, 224), classes) for classes in (0, 1_000, 21_843))

    assert counts == PARAMS_AT_224[name]


@pytest.mark.parametrize(("name", "size"), GMACS)
def test_multiply_accumulates_are_those_of_the_paper_table(name, size):
    printed = GMACS[name, size]
    digits = len(str(printed).partition(".")[2])

    assert forward_macs(VARIANTS[name], (size, size)) / 1e9 == pytest.approx(printed, abs=0.51 * 10**-digits)


def test_a_wide_image_counts_its_own_patches():
    wide, high = (
        forward_macs(VARIANTS["ViT-B/16"], (224, 448)),
        forward_macs(VARIANTS["ViT-B/16"], (448, 224)),
    )

    assert wide == high
    assert (
        num_params(VARIANTS["ViT-B/16"], (224, 448), 0) - num_params(VARIANTS["ViT-B/16"], (224, 224), 0)
        == 196 * 768
    )


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden data (VIT_TEST_DATA) is not here")
def test_parameter_counts_are_those_of_the_authors_code():
    official = json.loads((GOLDEN / "param_counts.json").read_text())
    plain = {n: c for n, c in official.items() if c["resnet"] is None and c["classifier"] == "token"}

    counted = {n: num_params(find_variant(n.replace("_", "/")), (224, 224), 1_000) for n in plain}

    assert len(plain) >= 8
    assert counted == {n: c["parameters_1000_classes"] for n, c in plain.items()}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ViT-L/16", "ViT-L/16"),
        ("vit_l16", "ViT-L/16"),
        ("L/16", "ViT-L/16"),
        ("vit-l-16", "ViT-L/16"),
        ("ViT-L_16", "ViT-L/16"),
        ("ViT-Large/16", "ViT-L/16"),
        ("Ti/16", "ViT-Ti/16"),
        ("s32", "ViT-S/32"),
        ("b/8", "ViT-B/8"),
        (" h14 ", "ViT-H/14"),
        ("demo/8", "ViT-demo/8"),
        ("ViT-demo/8", "ViT-demo/8"),
        ("R50+ViT-B/16", "R50+ViT-B/16"),
        ("R50x1+ViT-L/32", "R50+ViT-L/32"),  # as Table 6 writes it
        ("r50_b32", "R50+ViT-B/32"),
        ("R26+S/32", "R26+ViT-S/32"),
        ("R_Ti_16", "R+ViT-Ti/16"),
        ("BiT-R152x4", "BiT-R152x4"),
        ("R200x3", "BiT-R200x3"),
        ("ResNet50x2", "BiT-R50x2"),
        ("EfficientNet-L2", "EfficientNet-L2"),
        ("Noisy Student", "EfficientNet-L2"),
    ],
)
def test_a_paper_name_is_found_in_any_spelling(spelling, name):
    assert find_variant(spelling).name == name


@pytest.mark.parametrize(
    "name",
    ["vit_base_patch16_224", "B/17", "resnet18", "R50+ViT-B/8", "b", "16", "", "ViT-X/16", "B/16/2", "R50"],
)
def test_other_names_are_no_paper_names(name):
    assert find_variant(name) is None


def test_a_timm_name_leads_to_its_variant_at_any_resolution():
    assert variant_of_timm("vit_base_patch16_384").name == "ViT-B/16"
    assert variant_of_timm("vit_tiny_patch16_224").name == "ViT-Ti/16"
    assert variant_of_timm("vit_base_patch16_clip_224") is None
    assert variant_of_timm("vit_base_r50_s16_384").name == "R50+ViT-B/16"
    assert variant_of_timm("vit_large_r50_s32_224").name == "R50+ViT-L/32"  # not B/32
    assert variant_of_timm("resnetv2_152x2_bit").name == "BiT-R152x2"
    assert variant_of_timm("vitcli_bit") is None


@pytest.mark.parametrize(("hidden", "mlp"), [(768, 3072), (1152, 4304), (100, 333), (7, 3), (384, 1000)])
def test_the_mlp_keeps_its_width_when_it_is_said_as_a_ratio(hidden, mlp):
    args = vit_args(layers=1, hidden=hidden, mlp=mlp, heads=1, patch_size=16)

    assert int(args["embed_dim"] * args["mlp_ratio"]) == mlp


ARCHITECTURE = Architecture(
    "ViT-B/16", "vit_base_patch16_224", (224, 320), 7, "tanh", True, {"patch_size": 16}
)


def test_an_architecture_survives_json():
    stored = json.loads(json.dumps(ARCHITECTURE.as_dict()))

    assert Architecture.from_dict(stored) == ARCHITECTURE


def test_the_patch_grid_is_height_by_width():
    assert ARCHITECTURE.patch_grid == (14, 20)


@pytest.mark.parametrize(
    "damage",
    [
        {"image_size": [224]},
        {"image_size": [0, 224]},
        {"image_size": ["a", "b"]},
        {"num_classes": "7"},
        {"gelu": "relu"},
        {"model_args": None},
        {"pre_logits": 1},
        {"other": 1},
    ],
)
def test_a_damaged_architecture_is_refused(damage):
    with pytest.raises(VitError, match="damaged"):
        Architecture.from_dict(ARCHITECTURE.as_dict() | damage)


def test_sizes_can_be_changed_one_by_one():
    base = resized(VARIANTS["ViT-B/32"], layers=8, hidden=1024, mlp=2048)  # paper, Figure 8

    assert (base.name, base.layers, base.hidden, base.mlp, base.heads) == ("ViT-8x1024/32", 8, 1024, 2048, 16)
    wider = resized(VARIANTS["ViT-Ti/16"], hidden=128)
    assert (wider.name, wider.layers, wider.mlp, wider.heads) == ("ViT-12x128/16", 12, 512, 2)
    finer = resized(VARIANTS["ViT-Ti/16"], patch_size=4)
    assert (finer.name, finer.patch_size, finer.timm_args["patch_size"]) == ("ViT-12x192/4", 4, 4)
    deeper = resized(VARIANTS["R50+ViT-B/16"], layers=3)
    assert (deeper.name, deeper.mlp, deeper.blocks) == ("R50+ViT-3x768/16", 3072, (3, 4, 9))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(VitError, match="a width of 100 does not divide into 3 heads"):
        resized(VARIANTS["ViT-Ti/16"], hidden=100, heads=3)


def test_patches_of_a_hybrid_are_its_resnets():
    with pytest.raises(VitError, match="not cut from pixels"):
        resized(VARIANTS["R50+ViT-B/16"], patch_size=4)


def test_the_activations_of_vit_b_16_are_17_values_a_token_with_its_class_token():
    arch = architecture("ViT-B/16", image_size=(224, 224), num_classes=10)

    assert activation_bytes(arch, low_precision=True) == 17 * 2 * 197 * 768 * 12
    assert activation_bytes(arch, low_precision=False, checkpointed=True) == (4 * 12 + 17 * 4) * 197 * 768


def test_timm_builds_an_mlp_of_exactly_the_width_that_is_asked_for():
    """It truncates width times ratio; some of these products fall just below the whole number."""
    sizes = [(hidden, mlp) for hidden in range(48, 400, 16) for mlp in range(50, 1600, 7)]
    truncated = sum(int(hidden * (mlp / hidden)) != mlp for hidden, mlp in sizes)
    built = [
        int(hidden * vit_args(layers=1, hidden=hidden, mlp=mlp, heads=1, patch_size=8)["mlp_ratio"])
        for hidden, mlp in sizes
    ]

    assert built == [mlp for _, mlp in sizes] and truncated > 10
