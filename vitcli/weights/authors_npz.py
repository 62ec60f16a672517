"""The authors' .npz files: their arrays to a state dict in timm's naming, and back.

First the table of all arrays (`table`), then reading and writing (`from_official`, `to_official`), then the
three spellings of the ViT part: `published` in the released files (`MultiHeadDotProductAttention_1`,
`LayerNorm_2`, `MlpBlock_3`, group norms of shape (1, 1, 1, C)); `linen` in the authors' code today (`..._0`,
`LayerNorm_1`, `MlpBlock_0`, (C)), which the table uses; and `big_vision`, linen's names under a prefix,
without a row for the class token in the position embedding.

Letters of axes: P x Q patch, C image channels, D hidden width, N patches, T tokens, H heads of width h,
M MLP, E representation, K classes; in a ResNet R root, F and O inner and outer channels of a stage.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import WeightsError

SPELLINGS = ("published", "linen", "big_vision")
PREFIXES = ("opt/target/", "params/")
POSITION_EMBEDDING = "Transformer/posembed_input/pos_embedding"
FIRST_ARRAYS = {"embedding/kernel", "conv_root/kernel", "resnet/root_block/standardized_conv2d/kernel"}
OF_A_MODEL = re.compile(
    r"(embedding|cls|pos_embedding|Transformer|pre_logits|head|MAPHead_0|conv_root|gn_root|block\d+|resnet)(/|$)"
)
LINEN_NAMES = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
NUMBERED_CONV = re.compile(r"^(standardized_conv2d)_\d+$")
PUBLISHED_NAMES = {linen: published for published, linen in LINEN_NAMES.items()}
FLAX_NORM, TF_NORM = ("scale", "bias"), ("gamma", "beta")

# Regular expressions for the beginning of the names that show the layout of a network
OFFICIAL = {
    "bit": r"resnet/",
    "vit": r"embedding/|Transformer/",
    "backbone": r"conv_root/|gn_root/|block\d",
    "unit": r"(?:resnet/)?block(\d{1,3})/unit(\d{1,3})/",
    "layer": r"Transformer/encoderblock_(\d{1,3})/",
    "class_token": r"cls$",
    "head": r"(resnet/)?head/",
    "representation": r"pre_logits/",
}
TIMM = {
    "bit": r"stem\.|stages\.",
    "vit": r"patch_embed\.|pos_embed$",
    "backbone": r"patch_embed\.backbone\.",
    "unit": r"(?:patch_embed\.backbone\.)?stages\.(\d{1,3})\.blocks\.(\d{1,3})\.",
    "layer": r"blocks\.(\d{1,3})\.",
    "class_token": r"cls_token$",
    "head": r"head\.(fc\.)?(weight|bias)$",
    "representation": r"head\.(pre_logits|head)\.",
}

Sizes = dict[str, int]  # of the axes seen so far, by their letters


class Kind(NamedTuple):
    """Conversion of an official array to a tensor of timm, and back, which needs the number of heads."""

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
    lambda x_Hh: x_Hh.flatten(), lambda x_D, heads: x_D.unflatten(0, (heads, -1)), lambda axes: ["D"]
)
FROM_HEADS = Kind(
    lambda x_HhD: x_HhD.flatten(0, 1).T,
    lambda x_DD, heads: x_DD.T.unflatten(0, (heads, -1)),
    lambda axes: ["D", "D"],
)


class Array(NamedTuple):
    """Official array. Neighbours with the same `timm` are rows of that tensor, one after another."""

    official: str
    timm: str
    kind: Kind
    axes: list[str]


class Layout(NamedTuple):
    """Structure of a network, as its tensor names show it."""

    is_bit: bool
    units: tuple[int, ...] | None  # of each ResNet stage; None for a plain ViT
    layers: int
    has_class_token: bool
    head: Literal["none", "linear", "representation"]


class OfficialArray(NamedTuple):
    name: str  # in the file
    array: np.ndarray


class OfficialContent(NamedTuple):
    state: dict[str, Tensor]
    heads: int | None  # None for a BiT ResNet, which has none


def layout_of(names: Iterable[str], marks: dict[str, str]) -> Layout:
    """Return the layout of the network with these names; `table` then also lists those that are missing.

    Args:
        marks: OFFICIAL or TIMM.
    """
    names = list(names)

    def matches(mark: str) -> list[tuple[str, ...]]:
        return [match.groups() for name in names if (match := re.match(marks[mark], name))]

    is_bit = bool(matches("bit")) and not matches("vit")
    units_of_stage = Counter(int(stage) for stage, _ in set(matches("unit")))
    units: tuple[int, ...] | None = tuple(count for _, count in sorted(units_of_stage.items()))
    if is_bit:
        units = units or (1,)
    elif not matches("backbone"):
        units = None
    return Layout(
        is_bit=is_bit,
        units=units,
        layers=max(1, len(set(matches("layer")))),
        has_class_token=bool(matches("class_token")),
        head="representation" if matches("representation") else "linear" if matches("head") else "none",
    )


def table(layout: Layout) -> Iterator[Array]:
    """Yield every array of a network with this layout."""
    return _bit(layout) if layout.is_bit else _vit(layout)


def _vit(layout: Layout) -> Iterator[Array]:
    """Yield the arrays of a plain ViT, or of a hybrid: a ResNet and a ViT on its features."""
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
    """Yield the arrays of a hybrid's ResNet: a norm follows its convolution and has its output channels."""
    timm = "patch_embed.backbone"
    stem = f"{timm}.stem" if units else timm
    yield _array("conv_root/kernel", f"{stem}.conv.weight", CONV, "7 7 C R")
    yield from _norm("gn_root", f"{stem}.norm", "R", kind=GROUP_NORM)
    for stage, unit, number, axes in _residual_convs(units):
        block, in_timm = f"block{stage}/unit{unit}", f"{timm}.stages.{stage - 1}.blocks.{unit - 1}"
        suffix, conv, norm = number or "_proj", f"conv{number}", f"norm{number}"
        if number == 0:
            conv, norm = "downsample.conv", "downsample.norm"
        yield _array(f"{block}/conv{suffix}/kernel", f"{in_timm}.{conv}.weight", CONV, axes)
        yield from _norm(f"{block}/gn{suffix}", f"{in_timm}.{norm}", axes.split()[3], kind=GROUP_NORM)


def _bit(layout: Layout) -> Iterator[Array]:
    """Yield the arrays of a BiT ResNet: a norm precedes its convolution and has its input channels."""
    units, conv = layout.units or (), "standardized_conv2d/kernel"
    last = f"O{len(units)}"
    yield _array(f"resnet/root_block/{conv}", "stem.conv.weight", CONV, "7 7 C R")
    for stage, unit, number, axes in _residual_convs(units):
        block, in_timm = f"resnet/block{stage}/unit{unit:02d}", f"stages.{stage - 1}.blocks.{unit - 1}"
        if number == 0:
            yield _array(f"{block}/a/proj/{conv}", f"{in_timm}.downsample.conv.weight", CONV, axes)
            continue
        part, ins = f"{block}/{'abc'[number - 1]}", axes.split()[2]
        yield _array(f"{part}/{conv}", f"{in_timm}.conv{number}.weight", CONV, axes)
        yield from _norm(f"{part}/group_norm", f"{in_timm}.norm{number}", ins, names=TF_NORM)
    yield from _norm("resnet/group_norm", "norm", last, names=TF_NORM)
    if layout.head != "none":
        yield _array("resnet/head/conv2d/kernel", "head.fc.weight", CONV, f"1 1 {last} K")
        yield _array("resnet/head/conv2d/bias", "head.fc.bias", AS_IT_IS, "K")


def _residual_convs(units: tuple[int, ...]) -> Iterator[tuple[int, int, int, str]]:
    """Yield stage and unit, from 1, of each convolution, its number in the unit and its axes.

    The first unit of each stage widens and therefore begins with a projection, of number 0.
    """
    ins = "R"
    for stage, count in enumerate(units, start=1):
        inner, outer = f"F{stage}", f"O{stage}"
        for unit in range(1, count + 1):
            if unit == 1:
                yield stage, unit, 0, f"1 1 {ins} {outer}"
            yield stage, unit, 1, f"1 1 {ins} {inner}"
            yield stage, unit, 2, f"3 3 {inner} {inner}"
            yield stage, unit, 3, f"1 1 {inner} {outer}"
            ins = outer


def _norm(
    official: str, timm: str, axes: str, *, kind: Kind = AS_IT_IS, names: tuple[str, str] = FLAX_NORM
) -> Iterator[Array]:
    for name, timm_name in zip(names, ("weight", "bias"), strict=True):
        yield _array(f"{official}/{name}", f"{timm}.{timm_name}", kind, axes)


def _dense(official: str, timm: str, axes: str) -> Iterator[Array]:
    yield _array(f"{official}/kernel", f"{timm}.weight", DENSE, axes)
    yield _array(f"{official}/bias", f"{timm}.bias", AS_IT_IS, axes.split()[1])


def _array(official: str, timm: str, kind: Kind, axes: str) -> Array:
    return Array(official, timm, kind, axes.split())


def is_official(names: Iterable[str]) -> bool:
    """Return whether these are array names of the authors' ViT, hybrid or BiT."""
    return any(_without_prefix(name) in FIRST_ARRAYS for name in names)


def from_official(arrays: Mapping[str, np.ndarray], *, device: str = "cpu") -> OfficialContent:
    """Convert the arrays of an official file to a state dict in timm's naming, float32; each is used once.

    A representation layer becomes `head.pre_logits.*`, and the head after it `head.head.*`
    (models/build.py); `norm.*` is the encoder's norm, also where the tokens are averaged after it. The names
    do not show whether `pos_embed` has a row for the class token, only its number of rows does.

    Args:
        device: "meta" converts the shapes alone.

    Raises:
        WeightsError: an array is missing, unknown, duplicated, not of floats or of the wrong shape.
    """
    left = _in_linen_spelling(arrays)
    if any(name.startswith("MAPHead_0/") for name in left):
        fix = "use a ViT with a class token or with average pooling"
        raise WeightsError("this is a ViT with attention pooling", where="array names", fix=fix)
    # Take every array of the network's table, checking shapes against each other
    layout, state, sizes = layout_of(left, OFFICIAL), dict[str, Tensor](), Sizes()
    for name, rows in groupby(table(layout), key=attrgetter("timm")):
        state[name] = _concatenated([_take(left, entry, sizes, device) for entry in rows])
    if left:
        first = min(stored.name for stored in left.values())
        raise _bad_file(f"{len(left)} arrays are unknown, such as {first}")
    return OfficialContent(state, None if layout.is_bit else sizes["H"])


def to_official(state: dict[str, Tensor], *, heads: int | None, spelling: str) -> dict[str, np.ndarray]:
    """Convert a state dict as `from_official` returns it to the arrays of an official file, float32.

    In big_vision's spelling the class token's row of `pos_embed` is added to `cls`: a different state dict
    of the same network.

    Args:
        state: of a ViT, a hybrid or a BiT ResNet.
        heads: of the attention, not visible in timm's shapes; None for a BiT ResNet.
        spelling: one of SPELLINGS; a BiT ResNet has "published" only.

    Raises:
        WeightsError: a tensor is missing, has no official name, is not of floats or of the wrong shape.
    """
    assert spelling in SPELLINGS, spelling
    layout = layout_of(state, TIMM)
    entries = list(table(layout))
    known = {entry.timm for entry in entries}
    if unknown := [name for name in state if name not in known]:
        raise _bad_state(f"the authors' format has no name for the tensor {unknown[0]}")
    if missing := [entry.timm for entry in entries if entry.timm not in state]:
        raise _bad_state(f"the tensor {missing[0]} is missing")
    if layout.is_bit and spelling != "published":
        message = f"there is no {spelling} spelling of a BiT ResNet"
        raise WeightsError(message, where="--names", fix="BiT has one spelling: published")
    arrays, sizes = dict[str, np.ndarray](), Sizes()
    for name, rows in groupby(entries, key=attrgetter("timm")):
        arrays |= _split(state[name], list(rows), sizes, heads)
    if spelling == "published":
        return _in_published_spelling(arrays, entries)
    return _in_big_visions_spelling(arrays) if spelling == "big_vision" else arrays


def _concatenated(parts: list[Tensor]) -> Tensor:
    if parts[0].is_meta:  # torch.cat would load torch's compiler there: a second
        return torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), device="meta")
    return torch.cat(parts)


def _take(left: dict[str, OfficialArray], entry: Array, sizes: Sizes, device: str) -> Tensor:
    """Remove the entry's array from those that are left and return it in timm's layout."""
    if entry.official not in left:
        published = _published_name(entry.official)
        also = f" (published as {published})" if published != entry.official else ""
        raise _bad_file(f"the array {entry.official} is missing{also}")
    name, array = left.pop(entry.official)
    if array.dtype.kind != "f":
        raise _bad_file(f"the array {name} is of {array.dtype}, not of floats")
    if entry.kind is GROUP_NORM and array.shape[:-1] == (1, 1, 1):
        array = array[0, 0, 0]
    if not _fits(array.shape, entry.axes, sizes):
        raise _bad_file(f"the array {name} is of shape {array.shape}, not {_axes_text(entry.axes, sizes)}")
    if device == "meta":
        tensor = torch.empty(array.shape, device="meta")
    else:
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    tensor = entry.kind.to_timm(tensor)
    if not _fits(tensor.shape, entry.kind.timm_axes(entry.axes), sizes):
        raise _bad_file(f"the array {name} is of shape {array.shape}: its heads do not make up {sizes['D']}")
    return tensor


def _split(tensor: Tensor, entries: list[Array], sizes: Sizes, heads: int | None) -> dict[str, np.ndarray]:
    """Return the arrays that make up the rows of this tensor, one after another."""
    name, axes = entries[0].timm, entries[0].kind.timm_axes(entries[0].axes)
    if not tensor.is_floating_point():
        raise _bad_state(f"the tensor {name} is of {tensor.dtype}, not of floats")
    parts = tensor.detach().to("cpu", torch.float32).chunk(len(entries)) if tensor.ndim else ()
    if len(parts) != len(entries) or not all(_fits(part.shape, axes, sizes) for part in parts):
        times = f"{len(entries)} times " if len(entries) > 1 else ""
        shape = tuple(tensor.shape)
        raise _bad_state(f"the tensor {name} is of shape {shape}, not {times}{_axes_text(axes, sizes)}")
    if "H" in entries[0].axes and (not heads or sizes["D"] % heads):
        raise _bad_state(f"the width {sizes['D']} of the tensor {name} does not split into {heads} heads")
    return {
        entry.official: np.array(entry.kind.to_official(part, heads or 0).numpy(), order="C")
        for entry, part in zip(entries, parts, strict=True)
    }


def _fits(shape: tuple[int, ...], axes: list[str], sizes: Sizes) -> bool:
    """Compare a shape with its axes; a letter that is new gets the size that it has here."""
    return len(shape) == len(axes) and all(
        size == (int(axis) if axis.isdigit() else sizes.setdefault(axis, size))
        for size, axis in zip(shape, axes, strict=True)
    )


def _axes_text(axes: list[str], sizes: Sizes) -> str:
    return f"({', '.join(str(sizes.get(axis, axis)) for axis in axes)})"


def _in_linen_spelling(arrays: Mapping[str, np.ndarray]) -> dict[str, OfficialArray]:
    """Return the model's arrays without prefix, and without the other contents of a training checkpoint."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in arrays)), "")
    stored = {}
    for name, array in arrays.items():
        if not name.startswith(prefix):
            if OF_A_MODEL.match(_without_prefix(name)):
                raise _bad_file(f"the array {name} is not under {prefix}, as others are")
            continue
        parts = name.removeprefix(prefix).split("/")
        linen = "/".join(LINEN_NAMES.get(part) or NUMBERED_CONV.sub(r"\1", part) for part in parts)
        if linen == "pos_embedding":
            linen = POSITION_EMBEDDING
            array = _with_class_row(array) if f"{prefix}cls" in arrays else array
        if linen in stored:
            raise _bad_file(f"the array {name} is stored twice, in two spellings")
        stored[linen] = OfficialArray(name, array)
    return stored


def _with_class_row(posemb_1ND: np.ndarray) -> np.ndarray:
    """Add a row of zeros: in big_vision's layout `cls` already contains the class token's row."""
    if posemb_1ND.ndim != 3:
        raise _bad_file(f"the array pos_embedding is of shape {posemb_1ND.shape}, not (1, N, D)")
    return np.concatenate([np.zeros_like(posemb_1ND[:, :1]), posemb_1ND], axis=1)


def _in_published_spelling(arrays: dict[str, np.ndarray], entries: list[Array]) -> dict[str, np.ndarray]:
    norms = {entry.official for entry in entries if entry.kind is GROUP_NORM}
    return {
        _published_name(name): array[None, None, None] if name in norms else array
        for name, array in arrays.items()
    }


def _published_name(linen: str) -> str:
    return "/".join(PUBLISHED_NAMES.get(part, part) for part in linen.split("/"))


def _in_big_visions_spelling(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    posemb_1TD = arrays.pop(POSITION_EMBEDDING)
    if "cls" in arrays:
        arrays["cls"] = arrays["cls"] + posemb_1TD[:, :1]
        posemb_1TD = posemb_1TD[:, 1:]
    return {f"params/{name}": array for name, array in (arrays | {"pos_embedding": posemb_1TD}).items()}


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _bad_file(message: str) -> WeightsError:
    return WeightsError(message, where="array names and shapes", fix="use a file as the authors published it")


def _bad_state(message: str) -> WeightsError:
    fix = "keep these weights as .safetensors; the authors' .npz holds ViTs, hybrids and BiT ResNets"
    return WeightsError(message, where="tensor names and shapes", fix=fix)
