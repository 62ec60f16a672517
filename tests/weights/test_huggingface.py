"""Hugging Face's ViT: its names and its forward pass written out here, and transformers itself where it is.

B batch, T tokens, D hidden width, M width of the MLP, N heads, H width of a head.
"""

import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image

from vitcli.data.transforms import Preprocessing
from vitcli.errors import WeightsError
from vitcli.models.build import build
from vitcli.weights.huggingface import from_huggingface, is_huggingface, read_config, read_preprocessor
from vitcli.weights.io import read_weights
from vitcli.weights.load import load_into

LAYERS, HIDDEN, MLP, HEADS, PATCH, CLASSES = 2, 24, 40, 3, 4, 5
IMAGE_SIZE, TOKENS, EPS = (12, 20), 16, 1e-2  # an epsilon that shows
ERF = torch.nn.functional.gelu
LAYER = "vit.encoder.layer.0."


def tanh_gelu(values):
    return 0.5 * values * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (values + 0.044715 * values**3)))


def saved_shapes(*, biases: bool = True) -> dict[str, tuple[int, ...]]:
    """Of a ViTForImageClassification, as save_pretrained names them."""
    D, M = HIDDEN, MLP
    shapes = {
        "vit.embeddings.cls_token": (1, 1, D), "vit.embeddings.position_embeddings": (1, TOKENS, D),
        "vit.embeddings.patch_embeddings.projection.weight": (D, 3, PATCH, PATCH),
        "vit.embeddings.patch_embeddings.projection.bias": (D,),
        "vit.layernorm.weight": (D,), "vit.layernorm.bias": (D,),
        "classifier.weight": (CLASSES, D), "classifier.bias": (CLASSES,),
    }  # fmt: skip
    for layer in ("vit.encoder.layer.0.", "vit.encoder.layer.1."):
        for part in ("query", "key", "value"):
            shapes[f"{layer}attention.attention.{part}.weight"] = (D, D)
            shapes |= {f"{layer}attention.attention.{part}.bias": (D,)} if biases else {}
        shapes |= {
            layer + "layernorm_before.weight": (D,), layer + "layernorm_before.bias": (D,),
            layer + "attention.output.dense.weight": (D, D), layer + "attention.output.dense.bias": (D,),
            layer + "layernorm_after.weight": (D,), layer + "layernorm_after.bias": (D,),
            layer + "intermediate.dense.weight": (M, D), layer + "intermediate.dense.bias": (M,),
            layer + "output.dense.weight": (D, M), layer + "output.dense.bias": (D,),
        }  # fmt: skip
    return shapes


def classifier(*, biases: bool = True) -> dict[str, torch.Tensor]:
    """Random numbers, none of them zero."""
    draws = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=draws, dtype=torch.float64) * (0.3 if len(shape) > 1 else 1)
        for name, shape in saved_shapes(biases=biases).items()
    }


def backbone() -> dict[str, torch.Tensor]:
    """A ViTModel: no prefix, no classifier, a pooler."""
    state = {n.removeprefix("vit."): t for n, t in classifier().items() if not n.startswith("classifier")}
    return state | {"pooler.dense.weight": torch.ones(24, 24), "pooler.dense.bias": torch.ones(24)}


def in_memory(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same under the names that modules have in transformers 5."""
    spelled = {}
    for name, tensor in state.items():
        for old, new in (
            ("encoder.layer.", "layers."),
            ("attention.attention.query", "attention.q_proj"),
            ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"),
            ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
        ):
            name = name.replace(old, new)
        spelled[name] = tensor
    return spelled


def forward(state: dict[str, torch.Tensor], images_BCHW: torch.Tensor, act) -> torch.Tensor:
    """Logits as transformers' modeling_vit defines them."""

    def linear(values, name):
        return F.linear(values, state[name + ".weight"], state.get(name + ".bias"))

    def norm(values_BTD, name):
        mean = values_BTD.mean(-1, keepdim=True)
        variance = ((values_BTD - mean) ** 2).mean(-1, keepdim=True)
        return (values_BTD - mean) / (variance + EPS) ** 0.5 * state[name + ".weight"] + state[name + ".bias"]

    def heads(values_BTD):
        return values_BTD.unflatten(-1, (HEADS, HIDDEN // HEADS)).transpose(1, 2)

    patches = "vit.embeddings.patch_embeddings.projection"
    grid = F.conv2d(images_BCHW, state[patches + ".weight"], state[patches + ".bias"], stride=PATCH)
    cls_B1D = state["vit.embeddings.cls_token"].expand(len(images_BCHW), -1, -1)
    tokens_BTD = torch.cat([cls_B1D, grid.flatten(2).transpose(1, 2)], dim=1)
    tokens_BTD = tokens_BTD + state["vit.embeddings.position_embeddings"]
    for number in range(LAYERS):
        layer = f"vit.encoder.layer.{number}."
        normed_BTD = norm(tokens_BTD, layer + "layernorm_before")
        query_BNTH = heads(linear(normed_BTD, layer + "attention.attention.query"))
        key_BNTH = heads(linear(normed_BTD, layer + "attention.attention.key"))
        value_BNTH = heads(linear(normed_BTD, layer + "attention.attention.value"))
        scores = query_BNTH @ key_BNTH.transpose(2, 3) / (HIDDEN // HEADS) ** 0.5
        mixed_BTD = (scores.softmax(-1) @ value_BNTH).transpose(1, 2).flatten(2)
        tokens_BTD = tokens_BTD + linear(mixed_BTD, layer + "attention.output.dense")
        normed_BTD = norm(tokens_BTD, layer + "layernorm_after")
        wide = act(linear(normed_BTD, layer + "intermediate.dense"))
        tokens_BTD = tokens_BTD + linear(wide, layer + "output.dense")
    return linear(norm(tokens_BTD, "vit.layernorm")[:, 0], "classifier")


def timm_network(act: str = "gelu", *, image_size=IMAGE_SIZE, num_classes: int = CLASSES, eps: float = EPS):
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=image_size, patch_size=PATCH, embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS,
        mlp_ratio=MLP / HIDDEN, num_classes=num_classes, act_layer=act,
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = eps
    return model.double().eval()


def images(image_size=IMAGE_SIZE) -> torch.Tensor:
    return torch.randn(2, 3, *image_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def refused(call, *arguments) -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        call(*arguments)
    assert caught.value.where and caught.value.fix
    return caught.value


@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no qkv biases"])
@pytest.mark.parametrize(("act", "name"), [(ERF, "gelu"), (tanh_gelu, "gelu_tanh")], ids=["erf", "tanh"])
def test_timms_network_gives_the_logits_of_the_definition(act, name, biases):
    state = classifier(biases=biases)
    model = timm_network(name)

    model.load_state_dict(from_huggingface(state).state)

    with torch.no_grad():
        expected = forward(state, images(), act)
        assert expected.std() > 0.5
        torch.testing.assert_close(model(images()), expected, rtol=1e-10, atol=1e-10)


def test_names_in_memory_and_names_without_prefix_mean_the_same():
    expected = from_huggingface(classifier()).state
    without_head = {name: tensor for name, tensor in expected.items() if not name.startswith("head")}

    assert same(from_huggingface(in_memory(classifier())).state, expected)
    assert same(from_huggingface(backbone()).state, without_head)
    assert same(from_huggingface(in_memory(backbone())).state, without_head)


def test_half_precision_stays_what_it_is():
    half = {name: tensor.bfloat16() for name, tensor in classifier(biases=False).items()}

    assert {tensor.dtype for tensor in from_huggingface(half).state.values()} == {torch.bfloat16}


def test_what_a_classifier_does_not_use_is_named_as_in_the_file():
    masked = classifier() | {
        "vit.embeddings.mask_token": torch.ones(1, 1, HIDDEN),
        "decoder.0.weight": torch.ones(48, HIDDEN, 1, 1),
        "decoder.0.bias": torch.ones(48),
    }

    assert from_huggingface(classifier()).unused == ()
    assert from_huggingface(backbone()).unused == ("pooler.dense.weight", "pooler.dense.bias")
    assert from_huggingface(masked).unused == (
        "vit.embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"
    )  # fmt: skip
    assert same(from_huggingface(masked).state, from_huggingface(classifier()).state)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({LAYER + "attention.attention.key.bias": None}, "layer.0.attention.attention.key.bias is missing"),
        ({LAYER + "attention.attention.query.bias": None}, "2 tensors are unknown, such as encoder.layer.0"),
        ({"vit.layernorm.bias": None}, "the tensor layernorm.bias is missing"),
        ({"vit.embeddings.cls_token": None}, "the tensor embeddings.cls_token is missing"),
        ({"classifier.bias": None}, "the tensor classifier.bias is missing"),
        ({"vit.extra": torch.ones(1)}, "1 tensors are unknown, such as extra"),
        ({"vit.encoder.layer.7.output.dense.bias": torch.ones(24)}, "layer.2.layernorm_before.weight is m"),
        ({"layernorm.bias": torch.ones(24)}, "the tensor layernorm.bias is stored twice, in two spellings"),
        ({"vit.layernorm.bias": torch.ones(1, HIDDEN)}, "is torch.float32 of shape (1, 24), not 1 axes"),
        ({"vit.layernorm.bias": torch.ones(HIDDEN, dtype=torch.int8)}, "is torch.int8 of shape (24,)"),
        ({LAYER + "attention.attention.key.bias": torch.ones(23)}, "differ in shape"),
        ({LAYER + "attention.attention.value.weight": torch.ones(24, 23)}, "differ in shape"),
    ],
)
def test_a_missing_unexpected_or_misshapen_tensor_is_an_error(change, told):
    state = {name: tensor for name, tensor in (classifier() | change).items() if tensor is not None}

    assert told in refused(from_huggingface, state).message


def test_the_names_of_a_vit_are_known():
    assert is_huggingface(classifier())
    assert is_huggingface(classifier(biases=False))
    assert is_huggingface(backbone())
    assert is_huggingface(in_memory(classifier()))
    assert is_huggingface(in_memory(backbone()))
    assert is_huggingface({*classifier(), "vit.embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"})
    assert is_huggingface({*classifier(), "something.else"})  # for from_huggingface to refuse by name


@pytest.mark.parametrize("spelled", [dict, in_memory], ids=["saved", "in memory"])
def test_the_names_of_relatives_are_not_those_of_a_vit(spelled):
    bare = set(spelled(backbone()))
    key_biases = {name for name in bare if name.endswith((".key.bias", "k_proj.bias"))}
    layer = "layers.0." if spelled is in_memory else "encoder.layer.0."
    norms = {name for name in bare if ".layernorm_" in name}

    assert not is_huggingface({*bare, "embeddings.distillation_token"})  # DeiT
    assert not is_huggingface({"deit" + name.removeprefix("vit") for name in spelled(classifier())})
    assert not is_huggingface(bare - key_biases)  # BEiT with absolute positions
    assert not is_huggingface({*bare, layer + "lambda_1", layer + "lambda_2"})  # BEiT with layer scale
    assert not is_huggingface(bare - {"embeddings.position_embeddings"})  # BEiT
    assert not is_huggingface({*bare - norms, layer + "norm1.weight", layer + "norm2.weight"})  # DINOv2
    assert not is_huggingface({*bare, layer + "layer_scale1.lambda1"})
    assert not is_huggingface({*bare, "embeddings.detection_tokens"})  # YOLOS
    assert not is_huggingface({"encoder." + name for name in bare})  # an encoder with a decoder for text
    assert not is_huggingface(["vision_model.embeddings.class_embedding", "text_model.embeddings"])  # CLIP


def test_timms_and_the_authors_names_are_not_those_of_a_vit():
    assert not is_huggingface(timm_network().state_dict())
    assert not is_huggingface(["embedding/kernel", "cls", "Transformer/encoder_norm/scale"])
    assert not is_huggingface([])


CONFIG = {
    "architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "hidden_size": 24, "id2label": {"0": "cat", "1": "dog", "2": "dog"},
    "image_size": 12, "initializer_range": 0.02, "intermediate_size": 40, "label2id": {"cat": 0, "dog": 2},
    "layer_norm_eps": 1e-12, "model_type": "vit", "num_attention_heads": 3, "num_channels": 3,
    "num_hidden_layers": 2, "patch_size": 4, "qkv_bias": True, "transformers_version": "4.13.0.dev0",
}  # fmt: skip


def changed(given: dict, change: dict) -> dict:
    return {key: value for key, value in (given | change).items() if value is not ...}


def test_a_config_has_heads_gelu_epsilon_sizes_and_classes():
    assert read_config(CONFIG) == (3, "erf", 1e-12, (12, 12), 4, ("cat", "dog", "dog"))
    assert read_config({"model_type": "vit"}) == (12, "erf", 1e-12, (224, 224), 16, None)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"hidden_act": "gelu_new"}, "gelu", "tanh"),
        ({"hidden_act": "gelu_fast"}, "gelu", "tanh"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "gelu", "tanh"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps", 1e-6),
        ({"image_size": [12, 20]}, "image_size", (12, 20)),
        ({"patch_size": [8, 8]}, "patch_size", 8),
        ({"id2label": {"1": "b", "0": "a"}}, "class_names", ("a", "b")),
        (
            {"id2label": {str(i): f"n{i}" for i in range(11)}},
            "class_names",
            tuple(f"n{i}" for i in range(11)),
        ),
        ({"id2label": {0: "a", 1: "b"}}, "class_names", ("a", "b")),
        ({"id2label": {"0": 7, "1": 3}}, "class_names", ("7", "3")),
        ({"id2label": ..., "label2id": {"dog": 1, "cat": 0}}, "class_names", ("cat", "dog")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, "class_names", None),
        ({"id2label": {"0": "LABEL_0", "1": "dog"}}, "class_names", ("LABEL_0", "dog")),
        ({"id2label": {"0": "LABEL_1", "1": "LABEL_0"}}, "class_names", ("LABEL_1", "LABEL_0")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}, "class_names", None),
        ({"id2label": {}}, "class_names", None),
        ({"id2label": None, "label2id": None, "num_labels": 7}, "class_names", None),
    ],
)
def test_other_values_of_a_config(change, field, value):
    assert getattr(read_config(changed(CONFIG, change)), field) == value


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"model_type": "deit"}, "model_type"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"num_channels": 1}, "num_channels"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": [12]}, "image_size"),
        ({"patch_size": [4, 8]}, "patch_size"),
        ({"patch_size": 4.0}, "patch_size"),
        ({"id2label": {"1": "cat", "2": "dog"}}, "id2label"),
        ({"id2label": {"0": None}}, "id2label"),
        ({"id2label": ["cat", "dog"]}, "id2label"),
        ({"id2label": ..., "label2id": {"cat": [0]}}, "id2label"),
        ({"id2label": ..., "label2id": ..., "num_labels": -1}, "num_labels"),
    ],
)
def test_another_network_or_a_damaged_value_is_refused(change, where):
    assert refused(read_config, changed(CONFIG, change)).where == f"config.json: {where}"


HALF = [0.5, 0.5, 0.5]
SAVED_PROCESSOR = {
    "do_convert_rgb": None, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": HALF,
    "image_processor_type": "ViTImageProcessor", "image_std": HALF, "resample": 2,
    "rescale_factor": 0.00392156862745098, "size": {"height": 224, "width": 224},
}  # fmt: skip
WHOLE_PICTURE = {
    "image_size": [224, 224], "resize": "square", "crop_fraction": 1.0, "interpolation": "bilinear",
    "antialias": True, "mean": HALF, "std": HALF, "decoder": "Pillow",
}  # fmt: skip
CUT = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}}


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (SAVED_PROCESSOR, {}),
        ({}, {}),
        ({"do_normalize": True, "do_resize": True, "feature_extractor_type": "ViTFeatureExtractor",
          "image_mean": HALF, "image_std": HALF, "resample": 2, "size": 224}, {}),
        (SAVED_PROCESSOR | {"image_processor_type": "ViTImageProcessorFast", "do_convert_rgb": True,
                            "crop_size": None, "do_center_crop": None, "do_pad": None}, {}),
        (SAVED_PROCESSOR | {"resample": 3}, {"interpolation": "bicubic"}),
        (SAVED_PROCESSOR | {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]},
         {"mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 3.0]}),
        (SAVED_PROCESSOR | {"image_mean": 0.25, "image_std": 2}, {"mean": [0.25] * 3, "std": [2.0] * 3}),
        (SAVED_PROCESSOR | {"do_normalize": False}, {"mean": [0.0] * 3, "std": [1.0] * 3}),
        (SAVED_PROCESSOR | {"do_resize": False}, {"resize": "none"}),
        (SAVED_PROCESSOR | {"do_resize": False, "do_center_crop": True, "crop_size": 224},
         {"resize": "none"}),
        (SAVED_PROCESSOR | {"do_center_crop": True, "crop_size": 224}, {}),
        (SAVED_PROCESSOR | {"do_center_crop": False, "crop_size": 200}, {}),
        (SAVED_PROCESSOR | CUT, {"resize": "short_side", "crop_fraction": 0.875}),
    ],
)  # fmt: skip
def test_a_preprocessor_becomes_words_that_preprocessing_takes(processor, expected):
    read = read_preprocessor(processor, (224, 224))

    assert read == WHOLE_PICTURE | expected
    assert Preprocessing.from_dict(read).as_dict() == read


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"resample": 1}, "resample"),
        ({"resample": [2]}, "resample"),
        ({"do_rescale": False}, "do_rescale, rescale_factor"),
        ({"rescale_factor": 1 / 127.5}, "do_rescale, rescale_factor"),
        ({"do_resize": "yes"}, "do_resize"),
        ({"do_pad": True}, "do_pad"),
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"image_std": [0.5, 0.5, 0.0]}, "image_std"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "image_processor_type"),
        ({"image_processor_type": ["ViTImageProcessor"]}, "image_processor_type"),
        ({"image_processor_type": None, "feature_extractor_type": "DeiTFeatureExtractor"},
         "feature_extractor_type"),
        ({"size": {"height": 256, "width": 256}}, "size"),
        ({"size": {"longest_edge": 224}}, "size"),
        ({"size": [224, 224, 3]}, "size"),
        ({"size": {"shortest_edge": 224}}, "size, crop_size"),
        (CUT | {"size": {"shortest_edge": 223}}, "size, crop_size"),
        (CUT | {"size": {"shortest_edge": 256, "longest_edge": 512}}, "size, crop_size"),
        (CUT | {"size": {"height": 256, "width": 256}}, "size, crop_size"),
        (CUT | {"crop_size": None}, "crop_size"),
        (CUT | {"crop_size": 200}, "size"),
        (CUT | {"crop_size": 200, "do_resize": False}, "size"),
    ],
)  # fmt: skip
def test_preprocessing_that_we_do_not_have_is_refused(change, where):
    error = refused(read_preprocessor, SAVED_PROCESSOR | change, (224, 224))

    assert error.where == f"preprocessor_config.json: {where}"


def test_height_comes_before_width():
    size = {"size": {"height": 12, "width": 20}}

    assert read_preprocessor(SAVED_PROCESSOR | size, (12, 20))["image_size"] == [12, 20]
    refused(read_preprocessor, SAVED_PROCESSOR | size, (20, 12))


def photo(height: int = 90, width: int = 130) -> np.ndarray:
    """Waves of all lengths, so that filters differ."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * y / 300 * (channel + 1)) for channel in range(3)]
    return np.clip(127.5 + 127.5 * np.stack(waves, axis=-1), 0, 255).astype(np.uint8)


def off(one: np.ndarray, other: np.ndarray) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - np.asarray(other).astype(int)).max())


@pytest.mark.parametrize("resample", [2, 3])
def test_pixels_are_those_of_pillow(resample):
    whole = SAVED_PROCESSOR | {"resample": resample, "size": {"height": 24, "width": 32}}
    cut = SAVED_PROCESSOR | {"resample": resample, **CUT, "size": {"shortest_edge": 45}, "crop_size": 25}
    picture = Image.fromarray(photo())

    prepared = Preprocessing.from_dict(read_preprocessor(whole, (24, 32)))(photo())
    centre = Preprocessing.from_dict(read_preprocessor(cut, (25, 25)))(photo())

    assert off(prepared, np.asarray(picture.resize((32, 24), resample))) <= 1
    resized = np.asarray(picture.resize((65, 45), resample))  # 130 x 90 halved
    assert off(centre, resized[10:35, 20:45]) <= 1


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def their_network(transformers, kind: str, **change):
    """A network of transformers with random numbers everywhere, in float64."""
    size = dict(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=MLP
    )
    size |= dict(image_size=12, patch_size=PATCH, num_labels=CLASSES, layer_norm_eps=EPS)
    network = getattr(transformers, kind)(transformers.ViTConfig(**size | change)).double().eval()
    draws = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draws, dtype=torch.float64) * 0.3
    return network


@pytest.mark.parametrize(
    "change",
    [
        {}, {"qkv_bias": False}, {"hidden_act": "gelu_new"}, {"hidden_act": "gelu_fast"},
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    ],
)  # fmt: skip
def test_timms_network_gives_the_logits_of_transformers(transformers, tmp_path, change):
    network = their_network(transformers, "ViTForImageClassification", **change)
    network.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    config = read_config(json.loads(network.config.to_json_string()))
    model = timm_network(
        {"erf": "gelu", "tanh": "gelu_tanh"}[config.gelu],
        image_size=config.image_size, num_classes=network.config.num_labels, eps=config.layer_norm_eps,
    )  # fmt: skip

    for state in (network.state_dict(), load_file(tmp_path / "model.safetensors")):
        assert is_huggingface(state)
        model.load_state_dict(from_huggingface(state).state)
        with torch.no_grad():
            expected = network(images((12, 12))).logits
            torch.testing.assert_close(model(images((12, 12))), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("told", [{"layer_norm_eps": EPS, "hidden_act": "gelu_pytorch_tanh"}, {}])
def test_a_folder_gives_the_logits_of_transformers_with_its_numerics(transformers, tmp_path, told):
    size = dict(hidden_size=64, num_attention_heads=1, intermediate_size=256, layer_norm_eps=1e-12)
    network = their_network(transformers, "ViTForImageClassification", **size | told).float()
    network.save_pretrained(tmp_path)

    weights = read_weights(str(tmp_path))
    model = build(weights.architecture, dropout=0.0).eval()
    load_into(model, weights.architecture, weights, new_head=False)
    with torch.no_grad():
        pictures = images((12, 12)).float() * 1e-3  # so dark that the epsilon shows
        torch.testing.assert_close(model(pictures), network(pictures).logits, rtol=1e-4, atol=1e-4)


def test_weights_without_their_config_have_the_epsilon_and_gelu_of_transformers(transformers, tmp_path):
    size = dict(  # of ViT-demo/8
        hidden_size=96, num_hidden_layers=6, num_attention_heads=3, intermediate_size=384, patch_size=8
    )
    their_network(transformers, "ViTForImageClassification", **size).float().save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    defaults = transformers.ViTConfig()

    arch = read_weights(str(tmp_path / "model.safetensors")).architecture

    assert (arch.norm_eps, arch.gelu) == (defaults.layer_norm_eps, "erf") and defaults.hidden_act == "gelu"


def test_features_of_a_backbone_are_those_of_transformers(transformers):
    network = their_network(transformers, "ViTModel")
    converted = from_huggingface(network.state_dict())
    model = timm_network(image_size=(12, 12), num_classes=0)

    model.load_state_dict(converted.state)

    assert converted.unused == ("pooler.dense.weight", "pooler.dense.bias")
    with torch.no_grad():
        tokens_BTD = network(images((12, 12))).last_hidden_state
        torch.testing.assert_close(model.forward_features(images((12, 12))), tokens_BTD)


def test_masked_image_modelling_leaves_its_decoder_and_mask_over(transformers):
    network = their_network(transformers, "ViTForMaskedImageModeling", encoder_stride=PATCH)

    unused = from_huggingface(network.state_dict()).unused

    assert set(unused) == {"vit.embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"}


@pytest.mark.parametrize(
    "kind", ["DeiT", "Beit", "Dinov2", "Dinov2WithRegisters", "CLIPVision", "Data2VecVision", "IJepa"]
)
def test_related_models_of_transformers_are_distinguished(transformers, kind):
    size = dict(hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=MLP)
    size |= (
        {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0} if kind == "Beit" else {}
    )
    config = getattr(transformers, kind + "Config")(image_size=12, patch_size=PATCH, **size)

    assert not is_huggingface(getattr(transformers, kind + "Model")(config).state_dict())


def test_what_configs_leave_out_is_what_transformers_takes(transformers):
    for written in ({}, {"num_labels": 7}, {"id2label": {"0": "cat", "1": "dog"}}, {"id2label": {}}):
        theirs = transformers.ViTConfig.from_dict({"model_type": "vit", **written})
        ours = read_config({"model_type": "vit", **written})

        assert ours == read_config(json.loads(theirs.to_json_string(use_diff=False)))
    processor = json.loads(transformers.ViTImageProcessor().to_json_string())
    assert read_preprocessor({}, (224, 224)) == read_preprocessor(processor, (224, 224)) == WHOLE_PICTURE


@pytest.mark.parametrize(
    "change", [{}, {"resample": 3}, {"do_normalize": False}, {"image_mean": [0.1, 0.2, 0.3]}]
)
def test_pixels_are_those_of_transformers(transformers, change):
    processor = transformers.ViTImageProcessor(size={"height": 24, "width": 32}, **change)
    ours = Preprocessing.from_dict(read_preprocessor(json.loads(processor.to_json_string()), (24, 32)))

    (theirs_CHW,) = processor(Image.fromarray(photo()), return_tensors="np")["pixel_values"]

    values = (ours(photo()) / 255 - np.array(ours.mean)) / np.array(ours.std)
    level = 1 / 255 / min(ours.std)
    assert np.abs(values.transpose(2, 0, 1) - theirs_CHW).max() < 1.01 * level
