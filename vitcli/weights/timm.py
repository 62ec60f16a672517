"""Conversion between timm and our metadata: tensor names and config.json to an Architecture, and back."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

import timm
from torch import Tensor

from vitcli.errors import VitError, WeightsError, nearest
from vitcli.models.architecture import GAP, Architecture
from vitcli.models.build import timm_arguments
from vitcli.models.variants import BIT, HYBRID, VARIANTS, variant_of_timm, vit_args

PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # tensors with a row for each such token

Shapes = Mapping[str, tuple[int, ...]]


def recognise(
    state: dict[str, Tensor], *, heads: int | None, image_size: tuple[int, int] | None = None
) -> Architecture:
    """Return the ViT, hybrid or BiT ResNet whose tensors, in timm's naming, have these names and shapes.

    Args:
        heads: of the attention, not visible in timm's shapes; without it only the VARIANTS are recognised.
        image_size: height and width in pixels; None assumes a square patch grid, as in every released file.

    Raises:
        WeightsError: not the tensors of such a network, or of no known size.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if any(name.endswith("running_mean") for name in shapes):
        raise _unrecognised("the network has batch norm, unlike every network of the paper")
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
    num_axes = {"patch_embed.proj.weight": 4, "pos_embed": 3, "blocks.0.mlp.fc1.weight": 2}
    if any(len(shapes.get(name, ())) != count for name, count in num_axes.items()):
        raise _unrecognised("these are not the tensors of a ViT, hybrid or BiT ResNet")
    # Read the size from the shapes
    hidden, _, kernel, _ = shapes["patch_embed.proj.weight"]
    mlp = shapes["blocks.0.mlp.fc1.weight"][0]
    layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    blocks, width = _backbone(shapes)
    # Find the variant of this size; without one, the number of heads must be known
    size = (layers, hidden, mlp, kernel, blocks, width)
    size_of = attrgetter("layers", "hidden", "mlp", "patch_size", "blocks", "width")
    known = (v for v in VARIANTS.values() if size_of(v) == size and heads in (None, v.heads))
    variant = next(known, None)
    if variant:
        name, timm_name, args = variant.name, variant.timm_name, variant.timm_args
    elif heads is None or hidden % heads:
        sizes = f"{layers} layers of width {hidden}, an MLP of {mlp}, patches of {kernel}"
        raise _unrecognised(f"no known model has {sizes}")
    else:
        args = vit_args(layers=layers, hidden=hidden, mlp=mlp, heads=heads, patch_size=kernel)
        name, timm_name = f"ViT ({layers} layers, {hidden} wide)", "vit_base_patch16_224"
        if blocks is not None:
            name, timm_name = f"ResNet ({'-'.join(map(str, blocks)) or 'stem'}) + {name}", HYBRID
            args |= {"resnet_blocks": list(blocks), "resnet_width": width}
    # Add head and tokens; the image size follows, as it needs the patch size of the whole network
    pre_logits = "head.pre_logits.weight" in shapes
    representation_size = shapes["head.pre_logits.weight"][0] if pre_logits else hidden
    arch = Architecture(
        name=name,
        timm_name=timm_name,
        image_size=(kernel, kernel),
        num_classes=shapes.get("head.head.weight" if pre_logits else "head.weight", (0,))[0],
        gelu="tanh",
        pre_logits=pre_logits,
        model_args=args | _tokens(shapes),
        representation_size=representation_size if representation_size != hidden else 0,
    )
    name = name if variant else f"{name}/{arch.patch_size}"
    if image_size is None:
        assert arch.patch_size, "it is a transformer"
        image_size = (side := _side_of_grid(shapes) * arch.patch_size), side
    return replace(arch, name=name, image_size=image_size)


def _backbone(shapes: Shapes) -> tuple[tuple[int, ...] | None, float]:
    """Return the blocks of each stage and the width of a hybrid's ResNet; None and 1 without one."""
    if "patch_embed.backbone.stem.conv.weight" in shapes:
        width = shapes["patch_embed.backbone.stem.conv.weight"][0] / 64
        return _stages(shapes, "patch_embed.backbone."), width
    if "patch_embed.backbone.conv.weight" in shapes:
        return (), shapes["patch_embed.backbone.conv.weight"][0] / 64
    return None, 1


def _stages(shapes: Shapes, prefix: str) -> tuple[int, ...]:
    """Count the blocks of each stage."""
    first_conv = re.compile(re.escape(prefix) + r"stages\.(\d+)\.blocks\.\d+\.conv1\.weight")
    stages = [int(match[1]) for name in shapes if (match := first_conv.fullmatch(name))]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def _tokens(shapes: Shapes) -> dict:
    """Return timm's arguments about tokens and pooling."""
    num_registers = shapes.get("reg_token", (0, 0))[1]
    args = {"reg_tokens": num_registers} if num_registers else {}
    if "cls_token" not in shapes:
        return args | GAP | {"fc_norm": "norm.weight" not in shapes}
    if "fc_norm.weight" in shapes:
        raise _unrecognised("there are both a class token and the norm of an average over tokens")
    return args


def num_prefix_tokens(shapes: Shapes) -> int:
    """Count the tokens that stand for no patch: class token, distillation token, registers."""
    return sum(shapes[name][1] for name in PREFIX_TOKENS if len(shapes.get(name, ())) == 3)


def _side_of_grid(shapes: Shapes) -> int:
    """Return the side of the patch grid; refuse a position embedding without a row for every token."""
    rows, num_prefix = shapes["pos_embed"][1], ("cls_token" in shapes) + shapes.get("reg_token", (0, 0))[1]
    side, side_without = math.isqrt(max(rows - num_prefix, 0)), math.isqrt(rows)
    is_square_without = side_without > 0 and side_without**2 == rows
    is_ambiguous = num_prefix > 1 and is_square_without  # registers may have no rows
    if side and side * side == rows - num_prefix and not is_ambiguous:
        return side
    if num_prefix and is_square_without:
        raise WeightsError(
            f"the position embedding has {rows} rows, {side_without}x{side_without} patches and none for the "
            "class token, which is in the file",
            where="pos_embed",
            fix="name with --model the timm model that has such a class token, or use other weights",
        )
    raise WeightsError(
        f"the position embedding has {rows} rows, not a square of patches and {num_prefix} more",
        where="pos_embed",
        fix="use weights for square images, or weights written by vit, which store their grid",
    )


def from_timm_config(config: dict, *, tag: str) -> tuple[Architecture, dict | None, tuple[str, ...] | None]:
    """Return architecture, preprocessing and class names of a timm config.json.

    Args:
        config: the parsed file, in timm's current layout or the older one without "pretrained_cfg".
        tag: of the Hub repository, or "" for a folder. Weights tagged orig and augreg come from the JAX code
            and so take the tanh GELU; augreg2 was fine-tuned in timm, with timm's GELU.
    """
    stored = config.get("pretrained_cfg", config)
    args = dict(config.get("model_args") or {})
    tag = tag or str(stored.get("tag") or "")  # in the config of a copied repository
    timm_name = config["architecture"]
    num_classes = int(args.pop("num_classes", config.get("num_classes", stored.get("num_classes", 1000))))
    size = args.pop("img_size", None) or list(stored.get("input_size", (3, 224, 224)))[1:]
    height, width = (size, size) if isinstance(size, int) else map(int, size)
    image_size, name, gelu = (height, width), timm_name, "timm"
    variant = variant_of_timm(timm_name)
    if variant and not args and re.match(r"(orig|augreg)(_|$)", tag):  # of the paper
        name, timm_name, args, gelu = variant.name, variant.timm_name, variant.timm_args, "tanh"
    arch = Architecture(name, timm_name, image_size, num_classes, gelu, pre_logits=False, model_args=args)
    names = config.get("label_names", stored.get("label_names"))
    class_names = tuple(map(str, names)) if isinstance(names, list) and len(names) == num_classes else None
    return arch, _timm_preprocessing(stored, image_size), class_names


def split_tag(model_name: str) -> tuple[str, str]:
    """Return a model's name and the tag of its pretrained weights in timm, "" for a name without one.

    Raises:
        VitError: timm has no weights of this model with this tag.
    """
    name, _, tag = model_name.partition(".")
    if not tag or not timm.is_model(name):
        return model_name, ""
    known = timm.list_pretrained(f"{name}.*")
    if model_name not in known:
        tags = [known_name.partition(".")[2] for known_name in known]
        raise VitError(
            f"timm has no weights of {name} tagged {tag!r}{nearest(tag, tags)}",
            where=f"--model {model_name}",
            fix=f"{name} without a tag" + (f", or with one of {', '.join(tags)}" if tags else ""),
        )
    return name, tag


def as_timm_knows(arch: Architecture, *, tag: str) -> tuple[Architecture, dict | None, str]:
    """Return what timm's registry says of weights of this network that bring no config.json.

    Args:
        tag: of the weights; "" for those that timm loads by default, whose GELU then stays timm's.

    Returns:
        The network, with the GELU of the tag; the preprocessing, None if timm has no weights of it, whose
        statistics would be nobody's; and where it comes from, in words.
    """
    name = arch.timm_name
    known = timm.models.get_pretrained_cfg(f"{name}.{tag}" if tag else name)
    if known is None or not known.has_weights:
        return arch, None, ""
    config = {"architecture": name, "num_classes": arch.num_classes}
    config |= {"model_args": {"img_size": list(arch.image_size)}}
    config |= {"pretrained_cfg": {key: value for key, value in known.to_dict().items() if key != "tag"}}
    arch, preprocessing, _ = from_timm_config(config, tag=tag)
    return arch, preprocessing, f"as timm has it for {name} ({known.tag or 'default'})"


def is_padded(config: dict) -> bool:
    """Return whether timm pads images here, as for VOLO at 512 px, which our preprocessing does not."""
    stored = config.get("pretrained_cfg", config)
    return stored.get("crop_mode") == "border" or float(stored.get("crop_pct") or 1) > 1


def _timm_preprocessing(stored: dict, image_size: tuple[int, int]) -> dict:
    """Return timm's evaluation transform as our metadata."""
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


def _unrecognised(message: str) -> WeightsError:
    return WeightsError(message, where="tensor names and shapes", fix="name the model with --model")


def timm_config(arch: Architecture, preprocessing: dict, class_names: tuple[str, ...] | None) -> dict:
    """Return the config.json from which timm's "local-dir:" builds this network and its evaluation transform.

    timm always resizes, and always antialiases when it shrinks: there our transform may differ.
    """
    known = timm.models.get_pretrained_cfg(arch.timm_name)
    stored = known.to_dict(remove_source=True) if known else {}
    left_out = ("label", "test_", "min_", "tag", "license", "description", "origin_url", "paper", "notes")
    stored = {key: value for key, value in stored.items() if not key.startswith(left_out)}
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
    """Return the prefixes of the head's tensors in the state dict: ("head.",) for a ViT."""
    known = timm.models.get_pretrained_cfg(arch.timm_name)
    classifier = (known and known.classifier) or "head"
    return tuple(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier))
