"""Hugging Face's ViT in our terms: tensors, config.json and preprocessor_config.json.

`save_pretrained` of transformers writes the names on the right of SAVED_PARTS, in `encoder.layer.0`. The
modules had the same names until some release between 5.8 and 5.14; since then they, and a bare state dict,
have those on the left, in `layers.0`. Networks with a head add the prefix `vit.`. Tested with 4.57.6 and
5.23.0.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from vitcli.errors import WeightsError

SAVED_PARTS = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
PATCHES = "embeddings.patch_embeddings.projection"
EMBEDDINGS = {
    "embeddings.cls_token", "embeddings.position_embeddings", f"{PATCHES}.weight", f"{PATCHES}.bias",
}  # fmt: skip
UNUSED = {  # by a classifier: the pooler of ViTModel, and tensors of masked image modelling
    "pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token", "decoder.0.weight", "decoder.0.bias",
}  # fmt: skip
# Untrusted values are looked up in lists of these keys, as they may be unhashable.
GELUS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
PROCESSORS = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil", "ViTFeatureExtractor")
STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
# Defaults of transformers for keys that the file omits.
CONFIG_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "image_size": 224, "patch_size": 16, "num_channels": 3, "num_labels": 2,
}  # fmt: skip
PROCESSOR_DEFAULTS = {
    "do_resize": True, "size": 224, "resample": 2, "do_center_crop": False, "crop_size": None,
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": 0.5, "image_std": 0.5,
}  # fmt: skip
CONFIG, PROCESSOR, TENSORS = "config.json", "preprocessor_config.json", "tensor names and shapes"


class HuggingFaceTensors(NamedTuple):
    """Tensors in timm's naming, and the file's names of those that a classifier does not use."""

    state: dict[str, Tensor]
    unused: tuple[str, ...]


class HuggingFaceConfig(NamedTuple):
    """Values of config.json.

    Attributes:
        gelu: "erf" or "tanh".
        image_size: height and width in pixels.
        class_names: in the order of the logits; None if they are only LABEL_0, LABEL_1 and so on.
    """

    heads: int
    gelu: str
    layer_norm_eps: float
    image_size: tuple[int, int]
    patch_size: int
    class_names: tuple[str, ...] | None


def is_huggingface(names: Iterable[str]) -> bool:
    """Return whether these are tensor names of transformers' ViT, with or without a head.

    Related models differ in the embeddings or the first layer: DeiT has a distillation token, BEiT no bias of
    the key, DINOv2 other layer norms. The encoders of ViT-MAE, ViT-MSN, DPT and ViViT have the same names.
    """
    saved = {_as_saved(name) for name in names}
    first = {name for name in saved if name.startswith(("embeddings.", "encoder.layer.0."))}
    parts = {"layernorm_before", "layernorm_after", *SAVED_PARTS.values()}
    layer = {f"encoder.layer.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    query, key = (f"encoder.layer.0.attention.attention.{part}.bias" for part in ("query", "key"))
    needed = EMBEDDINGS | {"encoder.layer.0.layernorm_before.weight"}
    return needed <= first <= EMBEDDINGS | UNUSED | layer and (query in first) == (key in first)


def from_huggingface(state: dict[str, Tensor]) -> HuggingFaceTensors:
    """Convert the state dict of a ViTForImageClassification or ViTModel to timm's VisionTransformer.

    Query, key and value become one matrix, with zeros for missing biases (`qkv_bias=False`). Each tensor is
    used exactly once or named in `unused`.

    Raises:
        WeightsError: a tensor is missing, unknown, duplicated or of an impossible shape.
    """
    # Spell all names as save_pretrained does, and set aside what a classifier does not use
    spelled: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if (saved := _as_saved(name)) in spelled:
            raise _wrong(f"the tensor {saved} is stored twice, in two spellings", TENSORS)
        spelled[saved] = tensor
    left = {name: tensor for name, tensor in spelled.items() if name not in UNUSED}
    unused = tuple(name for name in state if _as_saved(name) in UNUSED)

    def take(name: str, *, ndim: int) -> Tensor:
        if name not in left:
            raise _wrong(f"the tensor {name} is missing", TENSORS)
        tensor = left.pop(name)
        if tensor.ndim != ndim or not tensor.is_floating_point():
            kind = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise _wrong(f"the tensor {name} is {kind}, not {ndim} axes of floats", TENSORS)
        return tensor

    def pair(name: str, *, ndim: int) -> dict[str, Tensor]:
        return {"weight": take(f"{name}.weight", ndim=ndim), "bias": take(f"{name}.bias", ndim=1)}

    # Convert embeddings, blocks, norm and head, taking each tensor from those that are left
    tokens = {"cls_token": take("embeddings.cls_token", ndim=3)}
    tokens["pos_embed"] = take("embeddings.position_embeddings", ndim=3)
    parts = {"patch_embed.proj": pair(PATCHES, ndim=4)}
    for layer in range(len({name.split(".")[2] for name in left if name.startswith("encoder.layer.")})):
        saved, block = f"encoder.layer.{layer}", f"blocks.{layer}"
        has_biases = f"{saved}.attention.attention.query.bias" in left
        parts[f"{block}.norm1"] = pair(f"{saved}.layernorm_before", ndim=1)
        parts[f"{block}.attn.qkv"] = _qkv(take, f"{saved}.attention.attention", has_biases=has_biases)
        parts[f"{block}.attn.proj"] = pair(f"{saved}.attention.output.dense", ndim=2)
        parts[f"{block}.norm2"] = pair(f"{saved}.layernorm_after", ndim=1)
        parts[f"{block}.mlp.fc1"] = pair(f"{saved}.intermediate.dense", ndim=2)
        parts[f"{block}.mlp.fc2"] = pair(f"{saved}.output.dense", ndim=2)
    parts["norm"] = pair("layernorm", ndim=1)
    if "classifier.weight" in left:
        parts["head"] = pair("classifier", ndim=2)
    if left:
        raise _wrong(f"{len(left)} tensors are unknown, such as {min(left)}", TENSORS)
    named = {f"{part}.{kind}": tensor for part, tensors in parts.items() for kind, tensor in tensors.items()}
    return HuggingFaceTensors(tokens | named, unused)


def read_config(config: dict) -> HuggingFaceConfig:
    """Read the parsed config.json of a ViT.

    Raises:
        WeightsError: another network, an activation that is not one of GELUS, or an impossible value.
    """
    given = CONFIG_DEFAULTS | config

    def demand(holds: bool, key: str, valid: str) -> None:
        if not holds:
            raise _wrong(f"{key} is {given.get(key)!r}, not {valid}", CONFIG, key)

    demand(given.get("model_type") == "vit", "model_type", "'vit'")
    demand(given["hidden_act"] in list(GELUS), "hidden_act", f"one of {', '.join(GELUS)}")
    demand(given["num_channels"] == 3, "num_channels", "3")
    for key in ("hidden_size", "num_attention_heads"):
        demand(_is_count(given[key]), key, "a whole number above 0")
    heads, hidden, eps = given["num_attention_heads"], given["hidden_size"], given["layer_norm_eps"]
    demand(hidden % heads == 0, "num_attention_heads", f"a divisor of the width {hidden}")
    demand(_is_number(eps) and eps > 0, "layer_norm_eps", "a number above 0")
    patch_height, patch_width = _sides(given, "patch_size", CONFIG)
    demand(patch_height == patch_width, "patch_size", "square")
    gelu, image_size = GELUS[given["hidden_act"]], _sides(given, "image_size", CONFIG)
    return HuggingFaceConfig(heads, gelu, float(eps), image_size, patch_height, _class_names(given))


def read_preprocessor(config: dict, image_size: tuple[int, int]) -> dict:
    """Convert the parsed preprocessor_config.json to `Preprocessing.as_dict`.

    Args:
        image_size: height and width in pixels of the network's input.

    Raises:
        WeightsError: images of another size, or steps that Preprocessing cannot do exactly.
    """
    given = PROCESSOR_DEFAULTS | {key: value for key, value in config.items() if value is not None}
    kind = "image_processor_type" if "image_processor_type" in given else "feature_extractor_type"
    if given.get(kind, PROCESSORS[0]) not in PROCESSORS:
        raise _wrong(f"images are preprocessed by a {given[kind]}, not as for a ViT", PROCESSOR, kind)
    _check_steps(given)
    resize, crop_fraction, size = _geometry(given, image_size)
    if size != tuple(image_size):
        sizes = f"{size[0]}x{size[1]} and the network takes {image_size[0]}x{image_size[1]}"
        raise _wrong(f"images become {sizes}", PROCESSOR, "size")
    return {
        "image_size": list(image_size),
        "resize": resize,
        "crop_fraction": crop_fraction,
        "interpolation": INTERPOLATIONS[given["resample"]],
        "antialias": True,
        "mean": _three(given, "image_mean") if given["do_normalize"] else [0.0, 0.0, 0.0],
        "std": _three(given, "image_std") if given["do_normalize"] else [1.0, 1.0, 1.0],
        "decoder": "Pillow",
    }


def _check_steps(given: dict) -> None:
    """Refuse steps that Preprocessing lacks, and a rescaling to anything but [0, 1]."""
    for step in (key for key in given if key.startswith("do_")):
        if type(given[step]) is not bool or (given[step] and step not in STEPS):
            raise _wrong(f"{step} is {given[step]!r}", PROCESSOR, step)
    resample, factor = given["resample"], given["rescale_factor"]
    if resample not in list(INTERPOLATIONS):
        raise _wrong(f"resample is {resample!r}, not 2 (bilinear) or 3 (bicubic)", PROCESSOR, "resample")
    if not (given["do_rescale"] and _is_number(factor) and math.isclose(factor, 1 / 255, rel_tol=1e-6)):
        raise _wrong("values are not divided by 255", PROCESSOR, "do_rescale, rescale_factor")


def _geometry(given: dict, image_size: tuple[int, int]) -> tuple[str, float, tuple[int, int]]:
    """Return `resize` and `crop_fraction` of Preprocessing, and the resulting height and width."""
    crop = _sides(given, "crop_size", PROCESSOR) if given["do_center_crop"] else None
    if not given["do_resize"]:
        return "none", 1.0, crop or image_size
    if isinstance(given["size"], dict) and _is_count(edge := given["size"].get("shortest_edge")):
        if len(given["size"]) > 1 or crop is None or max(crop) > edge:
            raise _wrong(f"a short side of {edge} without a crop within it", PROCESSOR, "size, crop_size")
        return "short_side", min(crop) / edge, crop
    size = _sides(given, "size", PROCESSOR)
    if crop not in (None, size):
        sizes = f"{size[0]}x{size[1]} and is then cropped to {crop[0]}x{crop[1]}"
        raise _wrong(f"the whole image becomes {sizes}", PROCESSOR, "size, crop_size")
    return "square", 1.0, size


def _class_names(given: dict) -> tuple[str, ...] | None:
    """Return the names by index; where id2label exists, transformers ignores the other keys."""
    id2label, label2id = given.get("id2label"), given.get("label2id")
    if id2label is None and isinstance(label2id, dict):
        id2label = {str(index): name for name, index in label2id.items()}
    if id2label is None:
        if type(given["num_labels"]) is not int or given["num_labels"] < 0:
            raise _wrong(f"the number of labels is {given['num_labels']!r}", CONFIG, "num_labels")
        return None
    by_index = {str(i): name for i, name in id2label.items()} if isinstance(id2label, dict) else {"": None}
    names = [by_index.get(str(index)) for index in range(len(by_index))]
    if not all(isinstance(name, str | int) for name in names):
        raise _wrong("the class indices are not 0, 1, 2 and so on", CONFIG, "id2label")
    is_named = any(name != f"LABEL_{index}" for index, name in enumerate(names))
    return tuple(map(str, names)) if is_named else None


def _as_saved(name: str) -> str:
    """Return a tensor's name as `save_pretrained` writes it for a network without a head."""
    name = name.removeprefix("vit.")
    layer = re.fullmatch(r"layers\.(\d+)\.(.+?)(\.weight|\.bias|)", name)
    return f"encoder.layer.{layer[1]}.{SAVED_PARTS.get(layer[2], layer[2])}{layer[3]}" if layer else name


def _qkv(take, attention: str, *, has_biases: bool) -> dict[str, Tensor]:
    """Concatenate query, key and value, in this order."""
    parts = [f"{attention}.{part}" for part in ("query", "key", "value")]
    weights = [take(f"{part}.weight", ndim=2) for part in parts]
    biases = [take(f"{part}.bias", ndim=1) for part in parts] if has_biases else []
    if len({tensor.shape for tensor in weights}) > 1 or any(len(bias) != len(weights[0]) for bias in biases):
        raise _wrong(f"query, key and value of {attention} differ in shape", TENSORS)
    weight = torch.cat(weights)
    return {"weight": weight, "bias": torch.cat(biases) if biases else weight.new_zeros(len(weight))}


def _sides(given: dict, key: str, file: str) -> tuple[int, int]:
    """Return height and width, which transformers accepts as one number, two, or a dict."""
    sides = given[key]
    if isinstance(sides, dict) and sides.keys() == {"height", "width"}:
        sides = (sides["height"], sides["width"])
    sides = sides if isinstance(sides, list | tuple) else (sides, sides)
    if len(sides) != 2 or not all(_is_count(side) for side in sides):
        raise _wrong(f"{key} is {given[key]!r}, not a height and width in pixels", file, key)
    return tuple(sides)


def _three(given: dict, key: str) -> list[float]:
    """Return a number for each channel; transformers also accepts one for all."""
    numbers = given[key] if isinstance(given[key], list) else [given[key]] * 3
    lowest = 0 if key == "image_std" else -math.inf
    if len(numbers) != 3 or not all(_is_number(number) and number > lowest for number in numbers):
        raise _wrong(f"{key} is {given[key]!r}, not a number for each of three channels", PROCESSOR, key)
    return [float(number) for number in numbers]


def _is_count(value) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _is_number(value) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30  # neither NaN nor beyond any float


def _wrong(message: str, file: str, key: str = "") -> WeightsError:
    fix = "use the file of a plain ViT as transformers wrote it"
    if file == PROCESSOR:
        fix = "copy the folder without this file, and give the preprocessing with --recipe"
    return WeightsError(message, where=f"{file}: {key}" if key else file, fix=fix)
