"""The one table between the array names of the authors' .npz files and the tensor names of timm.

A network's `Layout` shows in its names, on either side; `table` then lists every array it has. Reading and
writing both walk that list, so they cannot drift apart. Spellings and prefixes are official.py's: the names
here are those of the authors' code today.

Axes, as the official arrays have them; an axis of a fixed size stands as its number:
D hidden width, M width of the MLP, E width of the representation layer, K classes, H heads, h = D / H,
P x Q patch, T rows of the position embedding, C colours; in a ResNet R channels of the root, Fs inner and Os
outer channels of stage s.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from torch import Tensor

POSITION_EMBEDDING = "Transformer/posembed_input/pos_embedding"


class Kind(NamedTuple):
    """How an official array becomes a tensor of timm, and the way back, which needs the number of heads."""

    to_timm: Callable[[Tensor], Tensor]
    to_official: Callable[[Tensor, int], Tensor]
    timm_axes: Callable[[list[str]], list[str]]


AS_IT_IS = Kind(lambda x: x, lambda x, heads: x, lambda axes: axes)
GROUP_NORM = Kind(lambda x: x, lambda x, heads: x, lambda axes: axes)  # (1, 1, 1, C) in published files
DENSE = Kind(lambda x_IO: x_IO.T, lambda x_OI, heads: x_OI.T, lambda axes: axes[::-1])
CONV = Kind(
    lambda x_HWIO: x_HWIO.permute(3, 2, 0, 1),
    lambda x_OIHW, heads: x_OIHW.permute(2, 3, 1, 0),
    lambda axes: [axes[axis] for axis in (3, 2, 0, 1)],
)
TO_HEADS = Kind(
    lambda x_DHh: x_DHh.flatten(1).T,
    lambda x_DD, heads: x_DD.T.unflatten(1, (heads, -1)),
    lambda axes: ["D", "D"],
)
TO_HEADS_BIAS = Kind(
    lambda x_Hh: x_Hh.flatten(),
    lambda x_D, heads: x_D.unflatten(0, (heads, -1)),
    lambda axes: ["D"],
)
FROM_HEADS = Kind(
    lambda x_HhD: x_HhD.flatten(0, 1).T,
    lambda x_DD, heads: x_DD.T.unflatten(0, (heads, -1)),
    lambda axes: ["D", "D"],
)


class Array(NamedTuple):
    """One official array. Neighbours with the same `timm` are that tensor's rows, one after another."""

    official: str
    timm: str
    kind: Kind
    axes: list[str]


class Layout(NamedTuple):
    """What the names tell of a network."""

    is_bit: bool
    units: tuple[int, ...] | None  # of each ResNet stage; None for a plain ViT
    layers: int
    has_class_token: bool
    head: Literal["none", "linear", "representation"]


class Marks(NamedTuple):
    """By which names one side shows its layout: regular expressions for their beginnings."""

    bit: str
    vit: str
    backbone: str
    unit: str
    layer: str
    class_token: str
    head: str
    representation: str


OFFICIAL = Marks(
    bit=r"resnet/",
    vit=r"embedding/|Transformer/",
    backbone=r"conv_root/|gn_root/|block\d",
    unit=r"(?:resnet/)?block(\d{1,3})/unit(\d{1,3})/",
    layer=r"Transformer/encoderblock_(\d{1,3})/",
    class_token=r"cls$",
    head=r"(resnet/)?head/",
    representation=r"pre_logits/",
)
TIMM = Marks(
    bit=r"stem\.|stages\.",
    vit=r"patch_embed\.|pos_embed$",
    backbone=r"patch_embed\.backbone\.",
    unit=r"(?:patch_embed\.backbone\.)?stages\.(\d{1,3})\.blocks\.(\d{1,3})\.",
    layer=r"blocks\.(\d{1,3})\.",
    class_token=r"cls_token$",
    head=r"head\.(fc\.)?(weight|bias)$",
    representation=r"head\.(pre_logits|head)\.",
)


def layout_of(names: Iterable[str], marks: Marks) -> Layout:
    """The layout of the network with these names, which may lack some: `table` then lists those too."""
    names = list(names)

    def found(mark: str) -> list[tuple[str, ...]]:
        return [match.groups() for name in names if (match := re.match(mark, name))]

    is_bit = bool(found(marks.bit)) and not found(marks.vit)
    units_of_stage = Counter(int(stage) for stage, _ in set(found(marks.unit)))
    units = tuple(count for _, count in sorted(units_of_stage.items()))
    if is_bit:
        units = units or (1,)
    elif not found(marks.backbone):
        units = None
    return Layout(
        is_bit=is_bit,
        units=units,
        layers=max(1, len(set(found(marks.layer)))),
        has_class_token=bool(found(marks.class_token)),
        head="representation" if found(marks.representation) else "linear" if found(marks.head) else "none",
    )


def table(layout: Layout) -> Iterator[Array]:
    """Every array of such a network."""
    return _bit(layout) if layout.is_bit else _vit(layout)


def _vit(layout: Layout) -> Iterator[Array]:
    """A plain ViT or a hybrid, which is one behind a ResNet."""
    features = "C"
    if layout.units is not None:
        yield from _backbone(layout.units)
        features = f"O{len(layout.units)}" if layout.units else "R"
    yield _array("embedding/kernel", "patch_embed.proj.weight", CONV, f"P Q {features} D")
    yield _array("embedding/bias", "patch_embed.proj.bias", AS_IT_IS, "D")
    if layout.has_class_token:
        yield _array("cls", "cls_token", AS_IT_IS, "1 1 D")
    yield _array(POSITION_EMBEDDING, "pos_embed", AS_IT_IS, "1 T D")
    for layer in range(layout.layers):
        yield from _encoder_block(f"Transformer/encoderblock_{layer}", f"blocks.{layer}")
    yield from _norm("Transformer/encoder_norm", "norm", "D")
    match layout.head:
        case "linear":
            yield from _dense("head", "head", "D K")
        case "representation":
            yield from _dense("pre_logits", "head.pre_logits", "D E")
            yield from _dense("head", "head.head", "E K")


def _encoder_block(block: str, timm: str) -> Iterator[Array]:
    attention, mlp = f"{block}/MultiHeadDotProductAttention_0", f"{block}/MlpBlock_0"
    parts = ("query", "key", "value")  # the order of the rows in timm's one matrix
    yield from _norm(f"{block}/LayerNorm_0", f"{timm}.norm1", "D")
    for part in parts:
        yield _array(f"{attention}/{part}/kernel", f"{timm}.attn.qkv.weight", TO_HEADS, "D H h")
    for part in parts:
        yield _array(f"{attention}/{part}/bias", f"{timm}.attn.qkv.bias", TO_HEADS_BIAS, "H h")
    yield _array(f"{attention}/out/kernel", f"{timm}.attn.proj.weight", FROM_HEADS, "H h D")
    yield _array(f"{attention}/out/bias", f"{timm}.attn.proj.bias", AS_IT_IS, "D")
    yield from _norm(f"{block}/LayerNorm_1", f"{timm}.norm2", "D")
    yield from _dense(f"{mlp}/Dense_0", f"{timm}.mlp.fc1", "D M")
    yield from _dense(f"{mlp}/Dense_1", f"{timm}.mlp.fc2", "M D")


def _backbone(units: tuple[int, ...]) -> Iterator[Array]:
    """The ResNet of a hybrid: activation after the convolution, so a norm has the channels that go out."""
    timm = "patch_embed.backbone"
    stem = f"{timm}.stem" if units else timm
    yield _array("conv_root/kernel", f"{stem}.conv.weight", CONV, "7 7 C R")
    yield from _norm("gn_root", f"{stem}.norm", "R", kind=GROUP_NORM)
    for stage, unit, ins, outer, convs in _residual_units(units):
        block, ours = f"block{stage}/unit{unit}", f"{timm}.stages.{stage - 1}.blocks.{unit - 1}"
        if unit == 1:
            projection = f"{ours}.downsample.conv.weight"
            yield _array(f"{block}/conv_proj/kernel", projection, CONV, f"1 1 {ins} {outer}")
            yield from _norm(f"{block}/gn_proj", f"{ours}.downsample.norm", outer, kind=GROUP_NORM)
        for number, (size, into, out) in enumerate(convs, start=1):
            kernel, weight = f"{block}/conv{number}/kernel", f"{ours}.conv{number}.weight"
            yield _array(kernel, weight, CONV, f"{size} {into} {out}")
            yield from _norm(f"{block}/gn{number}", f"{ours}.norm{number}", out, kind=GROUP_NORM)


def _bit(layout: Layout) -> Iterator[Array]:
    """A BiT ResNet: activation before the convolution, so a norm has the channels that come in."""
    conv, last = "standardized_conv2d/kernel", f"O{len(layout.units)}"
    yield _array(f"resnet/root_block/{conv}", "stem.conv.weight", CONV, "7 7 C R")
    for stage, unit, ins, outer, convs in _residual_units(layout.units):
        block, ours = f"resnet/block{stage}/unit{unit:02d}", f"stages.{stage - 1}.blocks.{unit - 1}"
        if unit == 1:
            projection = f"{ours}.downsample.conv.weight"
            yield _array(f"{block}/a/proj/{conv}", projection, CONV, f"1 1 {ins} {outer}")
        for number, (letter, (size, into, out)) in enumerate(zip("abc", convs, strict=True), start=1):
            kernel, weight = f"{block}/{letter}/{conv}", f"{ours}.conv{number}.weight"
            yield _array(kernel, weight, CONV, f"{size} {into} {out}")
            yield from _tf_norm(f"{block}/{letter}/group_norm", f"{ours}.norm{number}", into)
    yield from _tf_norm("resnet/group_norm", "norm", last)
    if layout.head != "none":
        yield _array("resnet/head/conv2d/kernel", "head.fc.weight", CONV, f"1 1 {last} K")
        yield _array("resnet/head/conv2d/bias", "head.fc.bias", AS_IT_IS, "K")


def _residual_units(
    units: tuple[int, ...],
) -> Iterator[tuple[int, int, str, str, list[tuple[str, str, str]]]]:
    """Each unit's stage and number, from 1; its channels coming in and going out; size, channels coming in
    and channels going out of its three convolutions.

    The first unit of each stage widens and therefore has a projection.
    """
    ins = "R"
    for stage, count in enumerate(units, start=1):
        inner, outer = f"F{stage}", f"O{stage}"
        for unit in range(1, count + 1):
            yield stage, unit, ins, outer, [("1 1", ins, inner), ("3 3", inner, inner), ("1 1", inner, outer)]
            ins = outer


def _norm(official: str, timm: str, axes: str, *, kind: Kind = AS_IT_IS) -> Iterator[Array]:
    yield _array(f"{official}/scale", f"{timm}.weight", kind, axes)
    yield _array(f"{official}/bias", f"{timm}.bias", kind, axes)


def _tf_norm(official: str, timm: str, axes: str) -> Iterator[Array]:
    yield _array(f"{official}/gamma", f"{timm}.weight", AS_IT_IS, axes)
    yield _array(f"{official}/beta", f"{timm}.bias", AS_IT_IS, axes)


def _dense(official: str, timm: str, axes: str) -> Iterator[Array]:
    yield _array(f"{official}/kernel", f"{timm}.weight", DENSE, axes)
    yield _array(f"{official}/bias", f"{timm}.bias", AS_IT_IS, axes.split()[1])


def _array(official: str, timm: str, kind: Kind, axes: str) -> Array:
    return Array(official, timm, kind, axes.split())
