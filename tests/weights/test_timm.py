"""Recognition of networks by their tensors' names and shapes, and timm's configs."""

import pytest
import torch

from vitcli.errors import VitError, WeightsError
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.weights.timm import (
    as_timm_knows,
    from_timm_config,
    is_padded,
    num_prefix_tokens,
    recognise,
    split_tag,
    timm_config,
)

LAYERS, HIDDEN, MLP, HEADS, PATCH, GRID, CLASSES = 2, 24, 40, 3, 4, 3, 5


def state_of(*, side: int = GRID, prefix: int = 1, **changes) -> dict[str, torch.Tensor]:
    """The tensors that recognition looks at, of a small ViT; None takes one away."""
    shapes = {
        "cls_token": (1, 1, HIDDEN),
        "pos_embed": (1, prefix + side * side, HIDDEN),
        "patch_embed.proj.weight": (HIDDEN, 3, PATCH, PATCH),
        "blocks.0.mlp.fc1.weight": (MLP, HIDDEN),
        "blocks.1.mlp.fc1.weight": (MLP, HIDDEN),
        "norm.weight": (HIDDEN,),
        "head.weight": (CLASSES, HIDDEN),
    }
    shapes |= {name.replace("__", "."): shape for name, shape in changes.items()}
    return {name: torch.zeros(shape) for name, shape in shapes.items() if shape is not None}


@pytest.mark.parametrize(
    "arch",
    [
        architecture("Ti/16", image_size=(64, 64), num_classes=7),
        architecture(
            "Ti/16", image_size=(32, 32), num_classes=7, options=TransformerOptions(pre_logits=True)
        ),
        architecture("S/32", image_size=(64, 64), num_classes=0),
        architecture(
            "Ti/16", image_size=(48, 48), num_classes=3, options=TransformerOptions(classifier="gap")
        ),
        architecture("R+Ti/16", image_size=(64, 64), num_classes=7),
        architecture(
            "R26+S/32", image_size=(96, 96), num_classes=7, options=TransformerOptions(classifier="gap")
        ),
        architecture("BiT-R50x1", image_size=(224, 224), num_classes=7),
        *(
            pytest.param(
                architecture(name, image_size=(size, size), num_classes=count), marks=pytest.mark.slow
            )
            for name, size, count in (
                ("R50+B/32", 64, 7),
                ("R50+B/16", 64, 7),
                ("BiT-R50x2", 224, 0),
                ("BiT-R152x1", 224, 7),
            )
        ),
    ],
    ids=lambda arch: f"{arch.name}-{arch.classifier}-{arch.num_classes}",
)
def test_a_network_of_the_paper_is_recognised_by_its_tensors_alone(arch):
    with torch.device("meta"):
        state = build(arch, dropout=0.0).state_dict()

    assert recognise(state, heads=None) == arch


def test_an_unnamed_size_is_described_by_what_it_is():
    arch = recognise(state_of(), heads=HEADS)

    assert arch.name == "ViT (2 layers, 24 wide)/4"
    assert (arch.image_size, arch.patch_grid, arch.num_classes, arch.gelu) == ((12, 12), (3, 3), 5, "tanh")
    assert (arch.model_args["num_heads"], arch.model_args["depth"]) == (3, 2)
    assert recognise(state_of(head__weight=None), heads=HEADS).num_classes == 0


def test_without_heads_an_unnamed_size_asks_for_the_model():
    with pytest.raises(WeightsError) as refusal:
        recognise(state_of(), heads=None)

    assert "--model" in refusal.value.fix


def test_registers_are_tokens_without_a_place():
    arch = recognise(state_of(prefix=5, reg_token=(1, 4, HIDDEN)), heads=HEADS)

    assert (arch.model_args["reg_tokens"], arch.patch_grid) == (4, (3, 3))


@pytest.mark.parametrize(
    ("norm", "fc_norm", "norm_comes_later"), [((HIDDEN,), None, False), (None, (HIDDEN,), True)]
)
def test_without_a_class_token_the_tokens_are_averaged(norm, fc_norm, norm_comes_later):
    state = state_of(cls_token=None, prefix=0, norm__weight=norm, fc_norm__weight=fc_norm)
    args = recognise(state, heads=HEADS).model_args

    assert (args["class_token"], args["global_pool"], args["fc_norm"]) == (False, "avg", norm_comes_later)


@pytest.mark.parametrize("num_rows", [8, 11, 0])
def test_an_embedding_that_is_no_square_and_a_class_row_is_refused(num_rows):
    with pytest.raises(WeightsError, match="rows, not a square"):
        recognise(state_of(pos_embed=(1, num_rows, HIDDEN)), heads=HEADS)


def test_a_class_token_without_a_row_of_its_own_is_not_taken_for_a_patch():
    state = state_of(pos_embed=(1, 196, HIDDEN))

    with pytest.raises(WeightsError, match="196 rows, 14x14 patches and none for the class token"):
        recognise(state, heads=HEADS)


def test_registers_of_which_nobody_knows_whether_they_have_rows_are_refused():
    """Nine rows: 3 x 3 patches and none before them, or 2 x 2 patches, a class token and four registers."""
    with pytest.raises(WeightsError, match="9 rows, 3x3 patches and none for the class token"):
        recognise(state_of(pos_embed=(1, 9, HIDDEN), reg_token=(1, 4, HIDDEN)), heads=HEADS)


def test_a_class_token_and_the_norm_of_an_average_are_not_of_one_network():
    with pytest.raises(WeightsError, match="both a class token and the norm of an average"):
        recognise(state_of(fc_norm__weight=(HIDDEN,)), heads=HEADS)


def test_a_size_of_the_paper_with_other_heads_is_another_network():
    with torch.device("meta"):
        state = build(architecture("Ti/16", image_size=(64, 64), num_classes=7), dropout=0.0).state_dict()

    assert recognise(state, heads=3).name == recognise(state, heads=None).name == "ViT-Ti/16"
    other = recognise(state, heads=6)
    assert (other.name, other.model_args["num_heads"]) == ("ViT (12 layers, 192 wide)/16", 6)


def test_a_network_with_batch_norm_is_none_of_the_papers():
    with pytest.raises(WeightsError, match="batch norm"):
        recognise(state_of(stages__0__norm__running_mean=(3,)), heads=HEADS)


TIMM_CONFIG = {
    "architecture": "vit_base_patch16_384",
    "num_classes": 1000,
    "pretrained_cfg": {"input_size": [3, 384, 384], "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.mark.parametrize(
    ("tag", "name", "gelu"),
    [
        ("orig_in21k_ft_in1k", "ViT-B/16", "tanh"),
        ("augreg_in21k_ft_in1k", "ViT-B/16", "tanh"),
        ("augreg2_in21k_ft_in1k", "vit_base_patch16_384", "timm"),
        ("dino", "vit_base_patch16_384", "timm"),
        ("", "vit_base_patch16_384", "timm"),
    ],
)
def test_the_tag_of_timms_weights_says_which_gelu_they_were_made_with(tag, name, gelu):
    arch, _, _ = from_timm_config(TIMM_CONFIG, tag=tag)

    assert (arch.name, arch.gelu, arch.image_size) == (name, gelu, (384, 384))


def test_the_preprocessing_of_timms_config_is_kept_in_our_words():
    _, preprocessing, class_names = from_timm_config(TIMM_CONFIG | {"label_names": ["a", "b"]}, tag="")

    assert preprocessing["image_size"] == [384, 384]
    assert (preprocessing["resize"], preprocessing["crop_fraction"]) == ("short_side", 0.9)
    assert preprocessing["mean"] == [0.5, 0.5, 0.5]
    assert class_names is None  # two names cannot be those of 1,000 classes


def test_the_older_flat_config_is_read_too():
    flat = {
        "architecture": "resnet18",
        "num_classes": 3,
        "input_size": [3, 160, 160],
        "label_names": ["a", "b", "c"],
    }
    arch, _, class_names = from_timm_config(flat, tag="")

    assert (arch.timm_name, arch.num_classes, arch.image_size) == ("resnet18", 3, (160, 160))
    assert class_names == ("a", "b", "c")


def test_the_preprocessing_of_a_config_is_taken_value_by_value():
    stored = {"input_size": [3, 96, 96], "crop_pct": 0.95, "crop_mode": "squash", "interpolation": "bilinear"}
    stored |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    _, given, _ = from_timm_config({"architecture": "resnet18", "pretrained_cfg": stored}, tag="")
    _, usual, _ = from_timm_config({"architecture": "resnet18", "pretrained_cfg": {}}, tag="")

    assert given == {
        "image_size": [96, 96], "resize": "square", "crop_fraction": 0.95, "interpolation": "bilinear",
        "antialias": True, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "decoder": "Pillow",
    }  # fmt: skip
    assert (usual["resize"], usual["crop_fraction"], usual["interpolation"]) == (
        "short_side",
        0.875,
        "bicubic",
    )
    assert (usual["mean"], usual["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.mark.parametrize("in_arguments", [False, True])
def test_images_that_are_not_square_are_high_before_they_are_wide(in_arguments):
    given = {"model_args": {"img_size": [96, 160]}} if in_arguments else {}
    given |= {"pretrained_cfg": {} if in_arguments else {"input_size": [3, 96, 160]}}

    arch, preprocessing, _ = from_timm_config({"architecture": "vit_tiny_patch16_224"} | given, tag="")

    assert arch.image_size == (96, 160) and preprocessing["image_size"] == [96, 160]


@pytest.mark.parametrize(
    ("shapes", "count"),
    [
        ({}, 0),
        ({"cls_token": (1, 1, 8)}, 1),
        ({"cls_token": (1, 1, 8), "dist_token": (1, 1, 8)}, 2),
        ({"cls_token": (1, 1, 8), "reg_token": (1, 4, 8)}, 5),
        ({"reg_token": (1, 4, 8), "pos_embed": (1, 20, 8)}, 4),
        ({"cls_token": (1, 8)}, 0),  # of another network
    ],
)
def test_class_and_distillation_tokens_and_registers_stand_for_no_patch(shapes, count):
    assert num_prefix_tokens(shapes) == count


@pytest.mark.parametrize(
    ("stored", "padded"),
    [({}, False), ({"crop_pct": 1.0}, False), ({"crop_pct": 1.15}, True), ({"crop_mode": "border"}, True)],
)
def test_images_are_padded_where_more_than_the_whole_is_shown(stored, padded):
    assert is_padded(stored) == is_padded({"pretrained_cfg": stored}) == padded


def test_a_network_has_a_thousand_classes_unless_its_config_says_otherwise():
    def num_classes(**config: object) -> int:
        return from_timm_config({"architecture": "vit_tiny_patch16_224"} | config, tag="")[0].num_classes

    assert num_classes(pretrained_cfg={}) == 1000
    assert num_classes(pretrained_cfg={"num_classes": 7}) == 7
    assert num_classes(pretrained_cfg={"num_classes": 7}, num_classes=5) == 5
    assert num_classes(num_classes=5, model_args={"num_classes": 3}) == 3


def test_the_tag_may_stand_in_the_config_of_a_copied_repository():
    stored = TIMM_CONFIG["pretrained_cfg"] | {"tag": "augreg_in21k"}

    assert from_timm_config(TIMM_CONFIG | {"pretrained_cfg": stored}, tag="")[0].gelu == "tanh"
    assert from_timm_config(TIMM_CONFIG | {"pretrained_cfg": stored}, tag="dino")[0].gelu == "timm"
    known, _, about = as_timm_knows(from_timm_config(TIMM_CONFIG, tag="")[0], tag="")
    assert known.gelu == "timm" and about.startswith("as timm has it for vit_base_patch16_384 (")


def test_a_name_is_split_where_timm_has_weights_of_that_tag():
    name, tag = "vit_base_patch16_224", "augreg_in21k"

    assert split_tag(f"{name}.{tag}") == (name, tag)
    assert split_tag(name) == (name, "")
    assert split_tag("ViT-B/16.5") == ("ViT-B/16.5", "")
    with pytest.raises(VitError, match=f"tagged 'augreg_in22k', did you mean '{tag}'"):
        split_tag(f"{name}.augreg_in22k")


@pytest.mark.parametrize(
    ("resize", "crop_pct", "crop_mode"),
    [("none", 1.0, "center"), ("short_side", 0.9, "center"), ("square", 0.9, "squash")],
)
def test_timm_crops_what_we_crop_and_the_whole_where_we_resize_nothing(resize, crop_pct, crop_mode):
    pixels = {"resize": resize, "crop_fraction": 0.9, "interpolation": "bicubic", "mean": [0.5], "std": [0.5]}
    arch = architecture("ViT-B/16", image_size=(224, 224), num_classes=0)

    stored = timm_config(arch, pixels, None)["pretrained_cfg"]
    assert (stored["crop_pct"], stored["crop_mode"]) == (crop_pct, crop_mode)
