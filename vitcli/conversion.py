"""What other people's files say, in our words: arrays and configs in, timm names and Architectures out.

The authors' .npz files come in three spellings: that of the published (`MultiHeadDotProductAttention_1`,
`LayerNorm_2`, `MlpBlock_3`), that of their code today (`..._0`, `LayerNorm_1`, `MlpBlock_0`), and that of
big_vision, which has a prefix and no class row in the position embedding.

D hidden width, M width of the MLP, N patches, T = N + 1 tokens, K classes.
"""

import math
import re
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.variants import VARIANTS, Architecture, variant_of_timm, vit_args

PREFIXES = ("opt/target/", "params/")
OTHER_NETWORKS = {
    "conv_root/": "a hybrid of ResNet and ViT",
    "resnet/": "a BiT ResNet",
    "MAPHead_0/": "a ViT with attention pooling",
}
LINEN_NAMES = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
LATER = "this version reads plain ViTs with a class token"


def is_official(names: Iterable[str]) -> bool:
    """Whether these are array names of the authors' code: ViT, hybrid or BiT."""
    first_arrays = {"embedding/kernel", "conv_root/kernel", "resnet/root_block/standardized_conv2d/kernel"}
    return any(_without_prefix(name) in first_arrays for name in names)


def num_heads(arrays: dict[str, np.ndarray]) -> int:
    """Heads of a ViT in an official file, from its first query kernel (D, heads, D_head)."""
    kernels = [array for name, array in arrays.items() if name.endswith("/query/kernel") and array.ndim == 3]
    if not kernels:
        raise _refused("there is no query kernel of three axes")
    return kernels[0].shape[1]


def from_official(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """State dict of timm's VisionTransformer, float32, from the arrays of an official ViT file.

    A representation layer becomes `head.pre_logits.*`, and the head behind it `head.head.*` (see model.py).
    Each array is used exactly once.

    Raises:
        WeightsError: an array is missing, unknown or has the wrong shape; or the network is no plain ViT.
    """
    left = _of_a_plain_vit(_in_linen_spelling(arrays))

    def take(name: str, *, ndim: int) -> Tensor:
        if name not in left:
            raise _refused(f"the array {name} is missing")
        array = left.pop(name)
        if array.ndim != ndim or array.dtype.kind != "f":
            raise _refused(
                f"the array {name} is {array.dtype} of shape {array.shape}, not {ndim} axes of floats"
            )
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))

    def dense(name: str) -> dict[str, Tensor]:
        return {"weight": take(f"{name}/kernel", ndim=2).T.contiguous(), "bias": take(f"{name}/bias", ndim=1)}

    def norm(name: str) -> dict[str, Tensor]:
        return {"weight": take(f"{name}/scale", ndim=1), "bias": take(f"{name}/bias", ndim=1)}

    parts = {"patch_embed.proj": {
        "weight": take("embedding/kernel", ndim=4).permute(3, 2, 0, 1).contiguous(),
        "bias": take("embedding/bias", ndim=1),
    }}  # fmt: skip
    state = {"cls_token": take("cls", ndim=3), "pos_embed": _pos_embed(take, left)}
    for layer in range(sum(name.endswith("/query/kernel") for name in left)):
        block = f"Transformer/encoderblock_{layer}"
        parts[f"blocks.{layer}.norm1"] = norm(f"{block}/LayerNorm_0")
        parts |= _attention(take, f"{block}/MultiHeadDotProductAttention_0", f"blocks.{layer}.attn")
        parts[f"blocks.{layer}.norm2"] = norm(f"{block}/LayerNorm_1")
        parts[f"blocks.{layer}.mlp.fc1"] = dense(f"{block}/MlpBlock_0/Dense_0")
        parts[f"blocks.{layer}.mlp.fc2"] = dense(f"{block}/MlpBlock_0/Dense_1")
    parts["norm"] = norm("Transformer/encoder_norm")
    if "pre_logits/kernel" in left:
        parts["head.pre_logits"] = dense("pre_logits")
        parts["head.head"] = dense("head")
    elif "head/kernel" in left:
        parts["head"] = dense("head")
    if left:
        raise _refused(f"{len(left)} arrays are unknown, such as {sorted(left)[0]}")
    return state | {
        f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()
    }


def recognise(state: dict[str, Tensor], *, heads: int | None) -> Architecture:
    """The plain ViT whose tensors, in timm's naming, have these shapes.

    The number of heads shows in no shape of timm's: without `heads` only the VARIANTS are recognised.
    The patch grid is taken as square, as in every released file.

    Raises:
        WeightsError: these are not the tensors of a plain ViT of a known size.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wanted = ("patch_embed.proj.weight", "cls_token", "pos_embed", "blocks.0.mlp.fc1.weight")
    if (
        any(name not in shapes for name in wanted)
        or len(shapes[wanted[0]]) != 4
        or len(shapes["pos_embed"]) != 3
    ):
        raise _unrecognised("the tensors are not those of a plain ViT")
    hidden, _, _, patch_size = shapes["patch_embed.proj.weight"]
    mlp, rows = shapes["blocks.0.mlp.fc1.weight"][0], shapes["pos_embed"][1]
    layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    side = _square_root(rows - 1)

    size = (layers, hidden, mlp, patch_size)
    known = (v for v in VARIANTS.values() if (v.layers, v.hidden, v.mlp, v.patch_size) == size)
    variant = next((v for v in known if heads in (None, v.heads)), None)
    if variant is None and (heads is None or hidden % heads):
        raise _unrecognised(
            f"no known model has {layers} layers of width {hidden}, an MLP of {mlp}, patches of {patch_size}"
        )
    heads = heads or variant.heads
    pre_logits = "head.pre_logits.weight" in shapes
    head = shapes.get("head.head.weight" if pre_logits else "head.weight", (0,))
    return Architecture(
        name=variant.name if variant else f"ViT ({layers} layers, {hidden} wide)/{patch_size}",
        timm_name=variant.timm_name if variant else "vit_base_patch16_224",
        image_size=(side * patch_size, side * patch_size),
        num_classes=head[0],
        gelu="tanh",
        pre_logits=pre_logits,
        model_args=vit_args(layers=layers, hidden=hidden, mlp=mlp, heads=heads, patch_size=patch_size),
    )


def from_timm_config(config: dict, *, tag: str) -> tuple[Architecture, dict, tuple[str, ...] | None]:
    """Architecture, preprocessing and class names of a timm config.json.

    Args:
        config: the parsed file, in timm's present layout or the older one without "pretrained_cfg".
        tag: tag of the hub repository, or "" for a folder. The weights tagged orig and augreg are the JAX
            code's and so take the tanh GELU. augreg2 was fine-tuned in timm, with the GELU of timm.
    """
    stored = config.get("pretrained_cfg", config)
    args = dict(config.get("model_args") or {})
    timm_name = config["architecture"]
    num_classes = int(args.pop("num_classes", config.get("num_classes", stored.get("num_classes", 1000))))
    size = args.pop("img_size", None) or list(stored.get("input_size", (3, 224, 224)))[1:]
    image_size = (size, size) if isinstance(size, int) else tuple(map(int, size))
    variant = variant_of_timm(timm_name)
    of_the_paper = variant is not None and not args and re.match(r"(orig|augreg)(_|$)", tag)
    architecture = Architecture(
        name=variant.name if of_the_paper else timm_name,
        timm_name=variant.timm_name if of_the_paper else timm_name,
        image_size=image_size,
        num_classes=num_classes,
        gelu="tanh" if of_the_paper else "timm",
        pre_logits=False,
        model_args=variant.timm_args if of_the_paper else args,
    )
    names = config.get("label_names", stored.get("label_names"))
    class_names = tuple(names) if isinstance(names, list) and len(names) == num_classes else None
    return architecture, _timm_preprocessing(stored, image_size), class_names


def _timm_preprocessing(stored: dict, image_size: tuple[int, int]) -> dict:
    """What timm's evaluation does to an image, in the words of our own metadata."""
    return {
        "image_size": list(image_size),
        "resize": "square" if stored.get("crop_mode") == "squash" else "short_side",
        "crop_fraction": float(stored.get("crop_pct") or 0.875),  # timm's own default
        "interpolation": stored.get("interpolation") or "bicubic",
        "antialias": True,
        "mean": list(stored.get("mean") or (0.485, 0.456, 0.406)),
        "std": list(stored.get("std") or (0.229, 0.224, 0.225)),
        "decoder": "Pillow",
    }


def _square_root(num_patches: int) -> int:
    side = math.isqrt(max(num_patches, 0))
    if not side or side * side != num_patches:
        raise WeightsError(
            f"the position embedding has {num_patches + 1} rows, not one more than a square of patches",
            where="pos_embed",
            fix="use weights for square images, or weights that vit wrote, which say what grid they have",
        )
    return side


def _of_a_plain_vit(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays; WeightsError if they are those of another network."""
    for prefix, network in OTHER_NETWORKS.items():
        if any(name.startswith(prefix) for name in arrays):
            raise WeightsError(f"this is {network}", where="array names", fix=LATER)
    if "cls" not in arrays:
        raise WeightsError("this is a ViT without a class token", where="array names", fix=LATER)
    return arrays


def _attention(take, official: str, ours: str) -> dict[str, dict[str, Tensor]]:
    """Query, key and value become one matrix, in this order."""
    kernels = [take(f"{official}/{part}/kernel", ndim=3).flatten(1).T for part in ("query", "key", "value")]
    biases = [take(f"{official}/{part}/bias", ndim=2).flatten() for part in ("query", "key", "value")]
    out = take(f"{official}/out/kernel", ndim=3).flatten(0, 1).T.contiguous()
    return {
        f"{ours}.qkv": {"weight": torch.cat(kernels), "bias": torch.cat(biases)},
        f"{ours}.proj": {"weight": out, "bias": take(f"{official}/out/bias", ndim=1)},
    }


def _pos_embed(take, left: dict) -> Tensor:
    """(1, T, D). In big_vision's layout `cls` already contains the class row: zeros take its place."""
    if "pos_embedding" not in left:
        return take("Transformer/posembed_input/pos_embedding", ndim=3)
    grid_1ND = take("pos_embedding", ndim=3)
    return torch.cat([torch.zeros_like(grid_1ND[:, :1]), grid_1ND], dim=1)


def _in_linen_spelling(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's arrays, without prefix and without what else a training dump holds beside them."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in arrays)), "")
    spelled = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            parts = [LINEN_NAMES.get(part, part) for part in name.removeprefix(prefix).split("/")]
            if "/".join(parts) in spelled:
                raise _refused(f"the array {name} is there twice, in two spellings")
            spelled["/".join(parts)] = array
    return spelled


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _refused(message: str) -> WeightsError:
    return WeightsError(message, where="array names and shapes", fix="use a file as the authors published it")


def _unrecognised(message: str) -> WeightsError:
    return WeightsError(message, where="tensor names and shapes", fix="say which model this is with --model")
