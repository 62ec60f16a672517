"""Official .npz arrays in all spellings, against timm's own reader; recognition by shapes; timm's configs."""

import numpy as np
import pytest
import timm
import torch

from vitcli.conversion import from_official, from_timm_config, is_official, num_heads, recognise
from vitcli.errors import WeightsError

LAYERS, HIDDEN, MLP, HEADS, PATCH, GRID, CLASSES = 2, 24, 40, 3, 4, 3, 5


def official_arrays(**extra) -> dict[str, np.ndarray]:
    """A small ViT of random numbers under the names of the published files."""
    draws = np.random.default_rng(0)
    shapes = {
        "embedding/kernel": (PATCH, PATCH, 3, HIDDEN),
        "embedding/bias": (HIDDEN,),
        "cls": (1, 1, HIDDEN),
        "Transformer/posembed_input/pos_embedding": (1, 1 + GRID * GRID, HIDDEN),
        "Transformer/encoder_norm/scale": (HIDDEN,),
        "Transformer/encoder_norm/bias": (HIDDEN,),
        "head/kernel": (HIDDEN, CLASSES),
        "head/bias": (CLASSES,),
    }
    for layer in range(LAYERS):
        block = f"Transformer/encoderblock_{layer}"
        for part in ("query", "key", "value"):
            shapes[f"{block}/MultiHeadDotProductAttention_1/{part}/kernel"] = (HIDDEN, HEADS, HIDDEN // HEADS)
            shapes[f"{block}/MultiHeadDotProductAttention_1/{part}/bias"] = (HEADS, HIDDEN // HEADS)
        shapes[f"{block}/MultiHeadDotProductAttention_1/out/kernel"] = (HEADS, HIDDEN // HEADS, HIDDEN)
        shapes[f"{block}/MultiHeadDotProductAttention_1/out/bias"] = (HIDDEN,)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/{part}": (HIDDEN,) for part in ("scale", "bias")}
        shapes |= {
            f"{block}/MlpBlock_3/Dense_0/kernel": (HIDDEN, MLP),
            f"{block}/MlpBlock_3/Dense_0/bias": (MLP,),
        }
        shapes |= {
            f"{block}/MlpBlock_3/Dense_1/kernel": (MLP, HIDDEN),
            f"{block}/MlpBlock_3/Dense_1/bias": (HIDDEN,),
        }
    shapes |= extra
    return {name: draws.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def linen(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same under the names that the authors' code writes today."""
    spelled = {}
    for name, array in arrays.items():
        for old, new in (
            ("Attention_1", "Attention_0"),
            ("LayerNorm_2", "LayerNorm_1"),
            ("MlpBlock_3", "MlpBlock_0"),
        ):
            name = name.replace(old, new)
        spelled[name] = array
    return spelled


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_published_names_become_what_timms_own_reader_makes_of_them(tmp_path):
    np.savez(tmp_path / "vit.npz", **official_arrays())
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=PATCH * GRID, patch_size=PATCH, embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS,
        mlp_ratio=MLP / HIDDEN, num_classes=CLASSES,
    )  # fmt: skip
    model.load_pretrained(str(tmp_path / "vit.npz"))

    assert same(from_official(official_arrays()), dict(model.state_dict()))


def test_the_names_of_the_present_code_and_of_training_dumps_mean_the_same():
    expected = from_official(official_arrays())
    dump = {f"opt/target/{name}": array for name, array in linen(official_arrays()).items()}
    dump |= {"opt/state/step": np.zeros(()), "opt/state/momentum/cls": np.zeros(3)}

    assert same(from_official(linen(official_arrays())), expected)
    assert same(from_official(dump), expected)


def test_big_visions_embedding_gets_a_class_row_of_zeros():
    arrays = linen(official_arrays())
    posemb = arrays.pop("Transformer/posembed_input/pos_embedding")
    arrays["cls"] = arrays["cls"] + posemb[:, :1]
    arrays["pos_embedding"] = posemb[:, 1:]

    state = from_official({f"params/{name}": array for name, array in arrays.items()})
    expected = from_official(official_arrays())

    assert state["pos_embed"][:, 0].abs().max() == 0
    torch.testing.assert_close(
        state["cls_token"] + state["pos_embed"][:, :1], expected["cls_token"] + expected["pos_embed"][:, :1]
    )
    assert torch.equal(state["pos_embed"][:, 1:], expected["pos_embed"][:, 1:])


def test_a_representation_layer_is_kept_before_the_head():
    extra = {"pre_logits/kernel": (HIDDEN, HIDDEN), "pre_logits/bias": (HIDDEN,)}
    arrays = official_arrays(**extra)
    state = from_official(arrays)

    assert torch.equal(state["head.pre_logits.weight"], torch.from_numpy(arrays["pre_logits/kernel"].T))
    assert torch.equal(state["head.head.weight"], torch.from_numpy(arrays["head/kernel"].T))
    assert "head.weight" not in state


def test_a_file_without_a_head_has_no_classes():
    arrays = {name: array for name, array in official_arrays().items() if not name.startswith("head/")}

    assert recognise(from_official(arrays), heads=HEADS).num_classes == 0


def test_half_precision_and_double_become_float32():
    for dtype in (np.float16, np.float64):
        arrays = {name: array.astype(dtype) for name, array in official_arrays().items()}
        assert {tensor.dtype for tensor in from_official(arrays).values()} == {torch.float32}


@pytest.mark.parametrize(
    ("names", "official"),
    [
        (["embedding/kernel", "cls"], True),
        (["params/embedding/kernel"], True),
        (["opt/target/embedding/kernel"], True),
        (["conv_root/kernel"], True),
        (["resnet/root_block/standardized_conv2d/kernel"], True),
        (["patch_embed.proj.weight"], False),
        ([], False),
    ],
)
def test_official_files_are_known_by_their_first_layer(names, official):
    assert is_official(names) is official


@pytest.mark.parametrize(
    ("name", "network"),
    [("conv_root/kernel", "hybrid"), ("resnet/group_norm/gamma", "BiT"), ("MAPHead_0/probe", "pool")],
)
def test_another_network_is_refused_by_its_name(name, network):
    with pytest.raises(WeightsError, match=network):
        from_official(official_arrays() | {name: np.zeros(1, np.float32)})


def test_an_average_pooled_vit_is_refused_by_its_name():
    arrays = official_arrays()
    del arrays["cls"]

    with pytest.raises(WeightsError, match="without a class token"):
        from_official(arrays)


def test_a_file_that_lacks_any_array_is_refused_and_told_which():
    for name in linen(official_arrays()):
        arrays = linen(official_arrays())
        del arrays[name]
        with pytest.raises(WeightsError) as refusal:
            from_official(arrays)
        counted = (
            name == "cls" or name.endswith("query/kernel") or name == "head/kernel"
        )  # these say what there is
        assert counted or f"{name} is missing" in refusal.value.message


def test_an_unknown_array_a_wrong_shape_and_a_wrong_type_are_named():
    for name, array in (
        ("other/kernel", np.zeros(3, np.float32)),
        ("head/kernel", np.zeros(3, np.float32)),
        ("cls", np.zeros((1, 1, HIDDEN), np.int64)),
    ):
        with pytest.raises(WeightsError, match=name):
            from_official(official_arrays() | {name: array})


def test_one_array_in_two_spellings_is_refused():
    with pytest.raises(WeightsError, match="twice"):
        from_official(official_arrays() | linen(official_arrays()))


def test_an_unnamed_size_is_described_by_what_it_is():
    arch = recognise(from_official(official_arrays()), heads=num_heads(official_arrays()))

    assert arch.name == "ViT (2 layers, 24 wide)/4"
    assert (arch.image_size, arch.patch_grid, arch.num_classes, arch.gelu) == ((12, 12), (3, 3), 5, "tanh")
    assert (arch.model_args["num_heads"], arch.model_args["depth"]) == (3, 2)


def test_without_heads_an_unnamed_size_asks_for_the_model():
    with pytest.raises(WeightsError) as refusal:
        recognise(from_official(official_arrays()), heads=None)

    assert "--model" in refusal.value.fix


@pytest.mark.parametrize("num_rows", [9, 11, 1, 0])
def test_an_embedding_that_is_no_square_and_a_class_row_is_refused(num_rows):
    state = from_official(official_arrays()) | {"pos_embed": torch.zeros(1, num_rows, HIDDEN)}

    with pytest.raises(WeightsError, match="rows"):
        recognise(state, heads=HEADS)


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
