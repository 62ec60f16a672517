"""The authors' .npz files: their arrays as state dicts in timm's naming, and back.

The ViT part comes in three spellings: `published`, that of the released files
(`MultiHeadDotProductAttention_1`, `LayerNorm_2`, `MlpBlock_3`, group norms of shape (1, 1, 1, C)); `linen`,
that of the authors' code today (`..._0`, `LayerNorm_1`, `MlpBlock_0`, (C)); and `big_vision`: linen's names
under a prefix, and no class row in the position embedding. Which array is which tensor: official_names.py.

D hidden width, N patches, T tokens.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.weights.official_names import (
    GROUP_NORM,
    OFFICIAL,
    POSITION_EMBEDDING,
    TIMM,
    Array,
    layout_of,
    table,
)

SPELLINGS = ("published", "linen", "big_vision")
PREFIXES = ("opt/target/", "params/")
FIRST_ARRAYS = {"embedding/kernel", "conv_root/kernel", "resnet/root_block/standardized_conv2d/kernel"}
OF_A_MODEL = re.compile(
    r"(embedding|cls|pos_embedding|Transformer|pre_logits|head|MAPHead_0|conv_root|gn_root|block\d+|resnet)(/|$)"
)
LINEN_NAMES = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
PUBLISHED_NAMES = {linen: published for published, linen in LINEN_NAMES.items()}

Sizes = dict[str, int]  # of the axes met so far, by their letters


class Stored(NamedTuple):
    name: str  # in the file
    array: np.ndarray


class OfficialContent(NamedTuple):
    state: dict[str, Tensor]
    heads: int | None  # None: a BiT ResNet, which has none


def is_official(names: Iterable[str]) -> bool:
    """Whether these are array names of the authors' code: ViT, hybrid or BiT."""
    return any(_without_prefix(name) in FIRST_ARRAYS for name in names)


def from_official(arrays: dict[str, np.ndarray]) -> OfficialContent:
    """State dict in timm's naming, float32, from the arrays of an official file; each array is used once.

    A representation layer becomes `head.pre_logits.*`, and the head behind it `head.head.*` (see model.py);
    `norm.*` is the encoder's norm, also where the tokens are averaged after it. The names do not tell whether
    `pos_embed` has a row for the class token: whoever knows the patch grid sees it in the number of rows.

    Raises:
        WeightsError: an array is missing, unknown, there twice, not of floats or of the wrong shape.
    """
    left = _in_linen_spelling(arrays)
    if any(name.startswith("MAPHead_0/") for name in left):
        raise WeightsError(
            "this is a ViT with attention pooling",
            where="array names",
            fix="use a ViT with a class token or with average pooling",
        )
    layout = layout_of(left, OFFICIAL)
    state, sizes = {}, {}
    for name, rows in groupby(table(layout), key=attrgetter("timm")):
        state[name] = torch.cat([_taken(left, entry, sizes) for entry in rows])
    if left:
        first = min(stored.name for stored in left.values())
        raise _bad_file(f"{len(left)} arrays are unknown, such as {first}")
    return OfficialContent(state, None if layout.is_bit else sizes["H"])


def to_official(state: dict[str, Tensor], *, heads: int | None, spelling: str) -> dict[str, np.ndarray]:
    """The arrays of an official file, float32, from a state dict in the naming that `from_official` returns.

    In big_vision's spelling the class token's row of `pos_embed` is added to `cls`: another state dict, the
    same network.

    Args:
        state: of a ViT, a hybrid or a BiT ResNet.
        heads: of the attention, which show in no shape of timm's; None for a BiT ResNet.
        spelling: one of SPELLINGS. A BiT ResNet has "published" only.

    Raises:
        WeightsError: a tensor is missing, has no official name, is not of floats or of the wrong shape.
    """
    assert spelling in SPELLINGS, spelling
    layout = layout_of(state, TIMM)
    entries = list(table(layout))
    _check_tensor_names(state, entries)
    if layout.is_bit and spelling != "published":
        raise WeightsError(
            f"there is no {spelling} spelling of a BiT ResNet",
            where="the spelling of the array names",
            fix="BiT has one spelling: published",
        )
    arrays, sizes = {}, {}
    for name, rows in groupby(entries, key=attrgetter("timm")):
        arrays |= _written(state[name], list(rows), sizes, heads)
    if spelling == "published":
        return _in_published_spelling(arrays, entries)
    return _in_big_visions_spelling(arrays) if spelling == "big_vision" else arrays


def _taken(left: dict[str, Stored], entry: Array, sizes: Sizes) -> Tensor:
    """The entry's array, taken out of those that are left, as timm has it."""
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
        raise _bad_file(f"the array {name} is of shape {array.shape}, not {_expected(entry.axes, sizes)}")
    tensor = entry.kind.to_timm(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)))
    if not _fits(tensor.shape, entry.kind.timm_axes(entry.axes), sizes):
        raise _bad_file(f"the array {name} is of shape {array.shape}: its heads do not make up {sizes['D']}")
    return tensor


def _written(tensor: Tensor, entries: list[Array], sizes: Sizes, heads: int | None) -> dict[str, np.ndarray]:
    """The arrays that stand one after another in the rows of this tensor."""
    name, axes = entries[0].timm, entries[0].kind.timm_axes(entries[0].axes)
    if not tensor.is_floating_point():
        raise _bad_state(f"the tensor {name} is of {tensor.dtype}, not of floats")
    parts = tensor.detach().to("cpu", torch.float32).chunk(len(entries)) if tensor.ndim else ()
    if len(parts) != len(entries) or not all(_fits(part.shape, axes, sizes) for part in parts):
        times = f"{len(entries)} times " if len(entries) > 1 else ""
        shape = tuple(tensor.shape)
        raise _bad_state(f"the tensor {name} is of shape {shape}, not {times}{_expected(axes, sizes)}")
    if "H" in entries[0].axes and (not heads or sizes["D"] % heads):
        raise _bad_state(f"the width {sizes['D']} of the tensor {name} does not split into {heads} heads")
    return {
        entry.official: np.array(entry.kind.to_official(part, heads).numpy(), order="C")
        for entry, part in zip(entries, parts, strict=True)
    }


def _fits(shape: tuple[int, ...], axes: list[str], sizes: Sizes) -> bool:
    """Whether a shape has these axes; a letter met for the first time takes the size that it has here."""
    return len(shape) == len(axes) and all(
        size == (int(axis) if axis.isdigit() else sizes.setdefault(axis, size))
        for size, axis in zip(shape, axes, strict=True)
    )


def _expected(axes: list[str], sizes: Sizes) -> str:
    return f"({', '.join(str(sizes.get(axis, axis)) for axis in axes)})"


def _check_tensor_names(state: dict[str, Tensor], entries: list[Array]) -> None:
    known = {entry.timm for entry in entries}
    unknown = [name for name in state if name not in known]
    if unknown:
        raise _bad_state(f"the authors' format has no name for the tensor {unknown[0]}")
    missing = [entry.timm for entry in entries if entry.timm not in state]
    if missing:
        raise _bad_state(f"the tensor {missing[0]} is missing")


def _in_linen_spelling(arrays: dict[str, np.ndarray]) -> dict[str, Stored]:
    """The model's arrays, without prefix and without what else a training dump holds beside them."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in arrays)), "")
    stored = {}
    for name, array in arrays.items():
        if not name.startswith(prefix):
            if OF_A_MODEL.match(_without_prefix(name)):
                raise _bad_file(f"the array {name} is not under {prefix}, as others are")
            continue
        linen = "/".join(_linen_name(part) for part in name.removeprefix(prefix).split("/"))
        if linen == "pos_embedding":
            linen = POSITION_EMBEDDING
            array = _with_class_row(array) if f"{prefix}cls" in arrays else array
        if linen in stored:
            raise _bad_file(f"the array {name} is there twice, in two spellings")
        stored[linen] = Stored(name, array)
    return stored


def _linen_name(part: str) -> str:
    return LINEN_NAMES.get(part) or re.sub(r"^standardized_conv2d_\d+$", "standardized_conv2d", part)


def _with_class_row(posemb_1ND: np.ndarray) -> np.ndarray:
    """In big_vision's layout `cls` already contains the class token's row: zeros take its place."""
    if posemb_1ND.ndim != 3:
        raise _bad_file(f"the array pos_embedding is of shape {posemb_1ND.shape}, not (1, N, D)")
    return np.concatenate([np.zeros_like(posemb_1ND[:, :1]), posemb_1ND], axis=1)


def _in_published_spelling(arrays: dict[str, np.ndarray], entries: list[Array]) -> dict[str, np.ndarray]:
    spelled = {}
    for entry in entries:
        array = arrays[entry.official]
        array = array[None, None, None] if entry.kind is GROUP_NORM else array
        spelled[_published_name(entry.official)] = array
    return spelled


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
    return WeightsError(
        message,
        where="tensor names and shapes",
        fix="keep these weights as .safetensors; the authors' .npz holds ViTs, hybrids and BiT ResNets",
    )
