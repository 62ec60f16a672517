"""What other people's weights are: tensors and configs in, Architectures and preprocessing out."""

import math
import re
from dataclasses import replace

import timm
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.models.architecture import GAP, Architecture
from vitcli.models.build import timm_arguments
from vitcli.models.variants import (
    BIT,
    HYBRID,
    VARIANTS,
    variant_of_timm,
    vit_args,
)

PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # tensors with a row for each such token

Shapes = dict[str, tuple[int, ...]]


def recognise(
    state: dict[str, Tensor], *, heads: int | None, image_size: tuple[int, int] | None = None
) -> Architecture:
    """The ViT, hybrid or BiT ResNet whose tensors, in timm's naming, have these names and shapes.

    The number of heads shows in no shape of timm's: without `heads` only the VARIANTS are recognised.
    The patch grid is that of `image_size` where somebody says it, else taken as square, as in every released
    file.

    Raises:
        WeightsError: these are not the tensors of such a network, or of none of a known size.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if any(name.endswith("running_mean") for name in shapes):
        raise _unrecognised("the tensors are those of a network with batch norm, so none of the paper's")
    if len(shapes.get("stem.conv.weight", ())) == 4 and "stages.0.blocks.0.conv1.weight" in shapes:
        return _bit(shapes)
    return _transformer(shapes, heads, image_size)


def _bit(shapes: Shapes) -> Architecture:
    blocks, width = _stages(shapes, ""), shapes["stem.conv.weight"][0] / 64
    known = (v for v in VARIANTS.values() if not v.layers and (v.blocks, v.width) == (blocks, width))
    variant = next(known, None)
    return Architecture(
        name=variant.name if variant else f"BiT ResNet ({'-'.join(map(str, blocks))})x{width:g}",
        timm_name=variant.timm_name if variant else BIT,
        image_size=(224, 224),
        num_classes=shapes.get("head.fc.weight", (0,))[0],
        gelu="none",
        pre_logits=False,
        model_args=variant.timm_args if variant else {"layers": list(blocks), "width_factor": width},
    )


def _transformer(shapes: Shapes, heads: int | None, image_size: tuple[int, int] | None) -> Architecture:
    wanted = {"patch_embed.proj.weight": 4, "pos_embed": 3, "blocks.0.mlp.fc1.weight": 2}
    if any(len(shapes.get(name, ())) != ndim for name, ndim in wanted.items()):
        raise _unrecognised("the tensors are those of no ViT, hybrid or BiT ResNet")
    hidden, _, kernel, _ = shapes["patch_embed.proj.weight"]
    mlp = shapes["blocks.0.mlp.fc1.weight"][0]
    layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    blocks, width = _backbone(shapes)

    size = (layers, hidden, mlp, kernel, blocks, width)
    of_size = (v for v in VARIANTS.values() if _size(v) == size)
    variant = next((v for v in of_size if heads in (None, v.heads)), None)
    if variant is None and (heads is None or hidden % heads):
        raise _unrecognised(
            f"no known model has {layers} layers of width {hidden}, an MLP of {mlp}, patches of {kernel}"
        )
    if variant:
        name, timm_name, args = variant.name, variant.timm_name, variant.timm_args
    else:
        args = vit_args(layers=layers, hidden=hidden, mlp=mlp, heads=heads, patch_size=kernel)
        name, timm_name = f"ViT ({layers} layers, {hidden} wide)", "vit_base_patch16_224"
        if blocks is not None:
            name, timm_name = f"ResNet ({'-'.join(map(str, blocks)) or 'stem'}) + {name}", HYBRID
            args |= {"resnet_blocks": list(blocks), "resnet_width": width}
    pre_logits = "head.pre_logits.weight" in shapes
    arch = Architecture(
        name=name,
        timm_name=timm_name,
        image_size=(kernel, kernel),
        num_classes=shapes.get("head.head.weight" if pre_logits else "head.weight", (0,))[0],
        gelu="tanh",
        pre_logits=pre_logits,
        model_args=args | _tokens(shapes),
    )
    name = name if variant else f"{name}/{arch.patch_size}"
    if image_size is None:
        image_size = (_side_of_grid(shapes) * arch.patch_size,) * 2
    return replace(arch, name=name, image_size=image_size)


def _size(variant) -> tuple:
    size = (variant.layers, variant.hidden, variant.mlp, variant.patch_size)
    return (*size, variant.blocks, variant.width)


def _backbone(shapes: Shapes) -> tuple[tuple[int, ...] | None, float]:
    """Blocks by stage and width of the ResNet in front; None and 1 if there is none."""
    if "patch_embed.backbone.stem.conv.weight" in shapes:
        width = shapes["patch_embed.backbone.stem.conv.weight"][0] / 64
        return _stages(shapes, "patch_embed.backbone."), width
    if "patch_embed.backbone.conv.weight" in shapes:
        return (), shapes["patch_embed.backbone.conv.weight"][0] / 64
    return None, 1


def _stages(shapes: Shapes, prefix: str) -> tuple[int, ...]:
    """How many blocks each stage has, by the names."""
    first_conv = re.compile(re.escape(prefix) + r"stages\.(\d+)\.blocks\.\d+\.conv1\.weight")
    stages = [int(found[1]) for name in shapes if (found := first_conv.fullmatch(name))]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def _tokens(shapes: Shapes) -> dict:
    """What the names say about tokens and pooling, as arguments for timm."""
    num_registers = shapes.get("reg_token", (0, 0))[1]
    args = {"reg_tokens": num_registers} if num_registers else {}
    if "cls_token" in shapes:
        if "fc_norm.weight" in shapes:
            raise _unrecognised("there are a class token and a norm behind a mean over the tokens")
        return args
    return args | (GAP if "norm.weight" in shapes else GAP | {"fc_norm": True})


def num_prefix_tokens(shapes: Shapes) -> int:
    """Count the tokens that stand for no patch: class token, distillation token, registers."""
    return sum(shapes[name][1] for name in PREFIX_TOKENS if len(shapes.get(name, ())) == 3)


def _side_of_grid(shapes: Shapes) -> int:
    """Patches a side, of a position embedding with a row for every token; whatever else it has is refused."""
    rows, num_prefix = shapes["pos_embed"][1], ("cls_token" in shapes) + shapes.get("reg_token", (0, 0))[1]
    side, without = math.isqrt(max(rows - num_prefix, 0)), math.isqrt(rows)
    is_ambiguous = num_prefix > 1 and without * without == rows  # registers may have no rows
    if side and side * side == rows - num_prefix and not is_ambiguous:
        return side
    if num_prefix and without and without * without == rows:
        raise WeightsError(
            f"the position embedding has {rows} rows, {without}x{without} patches and none for the class "
            "token, which is in the file",
            where="pos_embed",
            fix="say with --model which timm model has such a class token, or take other weights",
        )
    raise WeightsError(
        f"the position embedding has {rows} rows, not a square of patches and {num_prefix} more",
        where="pos_embed",
        fix="use weights for square images, or weights that vit wrote, which say what grid they have",
    )


def from_timm_config(config: dict, *, tag: str) -> tuple[Architecture, dict | None, tuple[str, ...] | None]:
    """Architecture, preprocessing and class names of a timm config.json.

    Args:
        config: the parsed file, in timm's present layout or the older one without "pretrained_cfg".
        tag: tag of the hub repository, or "" for a folder. The weights tagged orig and augreg are the JAX
            code's and so take the tanh GELU. augreg2 was fine-tuned in timm, with the GELU of timm.
    """
    stored = config.get("pretrained_cfg", config)
    args = dict(config.get("model_args") or {})
    tag = tag or str(stored.get("tag") or "")  # a copy of the repository has it in its config
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


def _timm_preprocessing(stored: dict, image_size: tuple[int, int]) -> dict | None:
    """What timm's evaluation does to an image, in words of our metadata; None where they are too few."""
    mode, crop_pct = stored.get("crop_mode") or "center", stored.get("crop_pct") or 0.875  # timm's own
    if mode not in ("center", "squash"):
        return None
    return {
        "image_size": list(image_size),
        "resize": "square" if mode == "squash" else "short_side",
        "crop_fraction": float(crop_pct),
        "interpolation": stored.get("interpolation") or "bicubic",
        "antialias": True,
        "mean": list(stored.get("mean") or (0.485, 0.456, 0.406)),
        "std": list(stored.get("std") or (0.229, 0.224, 0.225)),
        "decoder": "Pillow",
    }


def _unrecognised(message: str) -> WeightsError:
    return WeightsError(message, where="tensor names and shapes", fix="say which model this is with --model")


def timm_config(arch: Architecture, preprocessing: dict, class_names: tuple[str, ...] | None) -> dict:
    """The config.json from which timm's "local-dir:" makes this network and its evaluation transform.

    timm has no transform without a resize, and always shrinks with antialias: there ours may differ.
    """
    known = timm.models.get_pretrained_cfg(arch.timm_name)
    stored = known.to_dict(remove_source=True) if known else {}
    others = ("label", "test_", "min_", "tag", "license", "description", "origin_url", "paper", "notes")
    stored = {key: value for key, value in stored.items() if not key.startswith(others)}
    stored |= {
        "architecture": arch.timm_name,
        "custom_load": False,
        "input_size": [3, *arch.image_size],
        "num_classes": arch.num_classes,
        "pool_size": None,
        "interpolation": preprocessing["interpolation"],
        "crop_pct": 1.0 if preprocessing["resize"] == "none" else preprocessing["crop_fraction"],
        "crop_mode": "squash" if preprocessing["resize"] == "square" else "center",
        "mean": list(preprocessing["mean"]),
        "std": list(preprocessing["std"]),
    }
    return {
        "architecture": arch.timm_name,
        "num_classes": arch.num_classes,
        "model_args": timm_arguments(arch),
        "pretrained_cfg": stored,
        **({"label_names": list(class_names)} if class_names else {}),
    }


def head_names(arch: Architecture) -> tuple[str, ...]:
    """Prefixes of the head's tensors in the state dict: ("head.",) for a ViT."""
    known = timm.models.get_pretrained_cfg(arch.timm_name)
    classifier = (known and known.classifier) or "head"
    return tuple(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier))
