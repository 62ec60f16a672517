"""Official .npz arrays read and written: timm's own readers are the judge, and the authors' golden files."""

import json
from functools import cache, partial

import numpy as np
import pytest
import torch
from timm.layers import GroupNormAct, StdConv2d, StdConv2dSame
from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed

from tests.conftest import SHARED
from vitcli.weights.authors_npz import SPELLINGS, from_official, is_official, to_official

GOLDEN = SHARED / "golden" / "checkpoints"
LAYERS, HIDDEN, MLP, HEADS, PATCH, GRID, CLASSES = 2, 24, 40, 3, 4, 3, 5
NORM = partial(GroupNormAct, num_groups=2)


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
        attention, mlp = f"{block}/MultiHeadDotProductAttention_1", f"{block}/MlpBlock_3"
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (HIDDEN, HEADS, HIDDEN // HEADS)
            shapes[f"{attention}/{part}/bias"] = (HEADS, HIDDEN // HEADS)
        shapes |= {
            f"{attention}/out/kernel": (HEADS, HIDDEN // HEADS, HIDDEN),
            f"{attention}/out/bias": (HIDDEN,),
            f"{mlp}/Dense_0/kernel": (HIDDEN, MLP),
            f"{mlp}/Dense_0/bias": (MLP,),
            f"{mlp}/Dense_1/kernel": (MLP, HIDDEN),
            f"{mlp}/Dense_1/bias": (HIDDEN,),
        }
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/{part}": (HIDDEN,) for part in ("scale", "bias")}
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


def without(arrays: dict, *names: str) -> dict:
    return {name: array for name, array in arrays.items() if name not in names}


def vit(*, class_token: bool = True, image_size: int = PATCH * GRID, **settings) -> VisionTransformer:
    return VisionTransformer(
        **dict(patch_size=PATCH, embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS, mlp_ratio=MLP / HIDDEN,
               img_size=image_size, num_classes=CLASSES, class_token=class_token, fc_norm=False,
               global_pool="token" if class_token else "avg") | settings
    )  # fmt: skip


def hybrid(*units: int, class_token: bool = True) -> VisionTransformer:
    common = dict(preact=False, stem_type="same", conv_layer=StdConv2dSame, norm_layer=NORM)
    if units:
        widths = dict(channels=(16, 32, 64), stem_chs=16, num_classes=0, global_pool="")
        backbone = ResNetV2(list(units), **widths, **common)
    else:
        backbone = create_resnetv2_stem(3, 16, **common)
    embedding = partial(HybridEmbed, backbone=backbone)
    return vit(class_token=class_token, image_size=32, patch_size=1 if units else 2, embed_layer=embedding)


def bit() -> ResNetV2:
    widths = dict(channels=(16, 32, 64, 128), stem_chs=16, num_classes=CLASSES)
    return ResNetV2([1, 1, 2, 1], **widths, stem_type="fixed", conv_layer=StdConv2d, norm_layer=NORM)


NETWORKS = {
    "ViT": (vit, HEADS),
    "ViT that averages": (partial(vit, class_token=False), HEADS),
    "ViT without a head": (partial(vit, num_classes=0), HEADS),
    "hybrid": (partial(hybrid, 2, 1), HEADS),
    "hybrid that averages": (partial(hybrid, 1, 1, 1, class_token=False), HEADS),
    "hybrid of a stem": (hybrid, HEADS),
    "BiT": (bit, None),
}
SPELT = [(network, "published") for network in NETWORKS] + [
    (network, spelling) for network in NETWORKS if network != "BiT" for spelling in ("linen", "big_vision")
]


@cache
def _state(network: str) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    tensors = NETWORKS[network][0]().state_dict()
    return {name: torch.randn(tensor.shape, generator=draws) for name, tensor in tensors.items()}


def state_of(network: str) -> dict[str, torch.Tensor]:
    return dict(_state(network))


def written(network: str, spelling: str = "published", state: dict | None = None) -> dict[str, np.ndarray]:
    return to_official(state or state_of(network), heads=NETWORKS[network][1], spelling=spelling)


def read_by_timm(arrays: dict[str, np.ndarray], model: torch.nn.Module, folder) -> dict[str, torch.Tensor]:
    np.savez(folder / "official.npz", **arrays)
    model.load_pretrained(str(folder / "official.npz"))
    return model.state_dict()


def same(one: dict, other: dict) -> bool:
    """The very same names, shapes and values."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_the_published_names_become_what_timms_own_reader_makes_of_them(tmp_path):
    content = from_official(official_arrays())

    assert same(content.state, read_by_timm(official_arrays(), vit(), tmp_path))
    assert content.heads == HEADS
    assert all(tensor.is_contiguous() for tensor in content.state.values())


@pytest.mark.parametrize("network", NETWORKS)
def test_timms_own_reader_gets_back_every_network_that_was_written(network, tmp_path):
    build, _ = NETWORKS[network]

    assert same(read_by_timm(written(network), build(), tmp_path), state_of(network))


def test_timms_own_reader_gets_back_big_visions_spelling(tmp_path):
    state = state_of("ViT")
    model = vit(no_embed_class=True)
    read = read_by_timm(written("ViT", "big_vision"), model, tmp_path)
    posemb_1TD = state["pos_embed"]
    moved = {"cls_token": state["cls_token"] + posemb_1TD[:, :1], "pos_embed": posemb_1TD[:, 1:]}

    assert same(read, state | moved)

    averaging = "ViT that averages"
    read = read_by_timm(written(averaging, "big_vision"), vit(class_token=False), tmp_path)
    assert same(read, state_of(averaging))


@pytest.mark.parametrize(("network", "spelling"), SPELT)
def test_what_was_written_is_read_back_bit_for_bit(network, spelling):
    arrays = written(network, spelling)
    content = from_official(arrays)

    assert all(array.flags.c_contiguous for array in arrays.values())
    assert content.heads == NETWORKS[network][1]
    assert same(written(network, spelling, content.state), arrays)
    if spelling != "big_vision" or "cls_token" not in content.state:
        assert same(content.state, state_of(network))


def test_each_spelling_has_its_own_names_and_group_norms():
    published, now, big_vision = (written("hybrid", spelling) for spelling in SPELLINGS)

    assert same(linen({name: array.squeeze() for name, array in published.items() if "/gn" in name}),
                {name: array for name, array in now.items() if "/gn" in name})  # fmt: skip
    assert published["block1/unit2/gn3/scale"].shape == (1, 1, 1, 16)
    assert now.keys() == linen(published).keys()
    renamed = {name.replace("Transformer/posembed_input/", "") for name in now}
    assert big_vision.keys() == {f"params/{name}" for name in renamed}
    assert written("ViT").keys() == official_arrays().keys()


def test_the_names_of_the_present_code_and_of_training_dumps_mean_the_same():
    expected = from_official(official_arrays()).state
    dump = {f"opt/target/{name}": array for name, array in linen(official_arrays()).items()}
    dump |= {"opt/state/step": np.zeros(()), "opt/state/momentum/cls": np.zeros(3)}
    later = {f"params/{name}": array for name, array in linen(official_arrays()).items()}

    assert same(from_official(linen(official_arrays())).state, expected)
    assert same(from_official(dump).state, expected)
    assert same(from_official(later | {"opt/0/mu/cls": np.zeros(3)}).state, expected)


def test_big_visions_embedding_gets_a_class_row_of_zeros():
    arrays = linen(official_arrays())
    posemb_1TD = arrays.pop("Transformer/posembed_input/pos_embedding")
    arrays["cls"] = arrays["cls"] + posemb_1TD[:, :1]
    arrays["pos_embedding"] = posemb_1TD[:, 1:]

    state = from_official({f"params/{name}": array for name, array in arrays.items()}).state

    assert np.array_equal(state["cls_token"], arrays["cls"])
    assert not state["pos_embed"][:, 0].any()
    assert np.array_equal(state["pos_embed"][:, 1:], posemb_1TD[:, 1:])


def test_a_representation_layer_is_kept_before_the_head():
    arrays = official_arrays(**{"pre_logits/kernel": (HIDDEN, HIDDEN), "pre_logits/bias": (HIDDEN,)})
    state = from_official(arrays).state

    assert np.array_equal(state["head.pre_logits.weight"], arrays["pre_logits/kernel"].T)
    assert np.array_equal(state["head.head.weight"], arrays["head/kernel"].T)
    assert "head.weight" not in state
    assert same(to_official(state, heads=HEADS, spelling="published"), arrays)


def test_a_file_without_a_head_has_none():
    state = from_official(without(official_arrays(), "head/kernel", "head/bias")).state

    assert not [name for name in state if name.startswith("head")]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_half_precision_and_double_become_float32(dtype):
    arrays = {name: array.astype(dtype) for name, array in official_arrays().items()}
    state = from_official(arrays).state
    back = to_official({name: t.double() for name, t in state.items()}, heads=HEADS, spelling="published")

    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert {array.dtype for array in back.values()} == {np.dtype(np.float32)}
    assert same(back, {name: array.astype(np.float32) for name, array in arrays.items()})


def test_running_numbers_of_bit_s_convolutions_are_accepted():
    numbered = {
        f"{name.replace('conv2d/', f'conv2d_{number}/')}" if "/unit" in name else name: array
        for number, (name, array) in enumerate(written("BiT").items())
    }

    assert same(from_official(numbered).state, state_of("BiT"))


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


GOLDEN_MODELS = json.loads((GOLDEN / "models.json").read_text()) if GOLDEN.is_dir() else {}
GOLDEN_FILES = [
    pytest.param(model, key, spelling, marks=() if model.startswith("tiny") else pytest.mark.slow)
    for model, settings in GOLDEN_MODELS.items()
    for key, spelling in zip(
        ("checkpoint", "linen_checkpoint", "big_vision_checkpoint"), SPELLINGS, strict=True
    )
    if key in settings
] or [pytest.param("", "", "", marks=pytest.mark.skip(reason="the golden data (VIT_TEST_DATA) is not here"))]


@pytest.mark.parametrize(("model", "key", "spelling"), GOLDEN_FILES)
def test_the_authors_own_files_are_written_again_as_they_are(model, key, spelling):
    settings = GOLDEN_MODELS[model]
    published, arrays = (dict(np.load(GOLDEN / settings[name])) for name in ("checkpoint", key))
    state, heads = from_official(arrays)

    assert heads == settings["heads"]
    assert sum(tensor.numel() for tensor in state.values()) == settings["parameters"]
    assert same(to_official(state, heads=heads, spelling=spelling), arrays)
    assert same(to_official(from_official(published).state, heads=heads, spelling=spelling), arrays)
