"""`vit interpolate-posemb`: a checkpoint for another resolution (paper, section 3.2) or patch size."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli.errors import VitError, WeightsError
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.build import check_image_size
from vitcli.models.flops import forward_macs
from vitcli.models.pos_embed import resample_patch_embedding, similarity_at_landmarks
from vitcli.models.variants import VARIANTS
from vitcli.output.atomic import check_out
from vitcli.output.text import pairs, size_text
from vitcli.weights.authors_npz import SPELLINGS
from vitcli.weights.describe import RESAMPLED_FROM, WeightsInfo
from vitcli.weights.formats import non_square_size, unsupported_feature, write_official
from vitcli.weights.io import Weights, read_weights, write_weights_file
from vitcli.weights.load import num_prefix_rows, resample_posemb
from vitcli.weights.timm import num_prefix_tokens

KERNEL = "patch_embed.proj.weight"


def interpolate_posemb(
    ckpt: str,
    out: str,
    *,
    image_size: tuple[int, int] | None,
    method: str,
    patch_size: int | None,
    model_name: str | None,
    overwrite: bool,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write the weights for another patch grid, and return what changed.

    Args:
        out: a .safetensors file, or an official .npz file for a square grid.
        image_size: height and width in pixels (default: unchanged).
        method: of `resample_posemb` and `resample_patch_embedding`.
        patch_size: in pixels (default: unchanged).
    """
    path, suffixes = Path(out), (".safetensors", ".npz")
    check_out(path, overwrite=overwrite, option="OUT", suffixes=suffixes, folder_error=VitError)
    if image_size is None and patch_size is None:
        raise VitError(
            "neither another image size nor another patch size is given",
            where="--res and --patch-size",
            fix="--res 384, or --res 384x512 (height x width), or --patch-size 8",
        )
    # Find the new architecture
    weights = read_weights(ckpt, model_name=model_name, quiet=quiet)
    _check_has_positions(weights, patch_size)
    old = weights.architecture
    num_prefix = num_prefix_tokens({name: tensor.shape for name, tensor in weights.state.items()})
    new = _with_patch_size(old, patch_size) if patch_size else old
    new = replace(new, image_size=image_size or new.image_size)
    check_image_size(new)
    # Resample the patch embedding to the patch size and the position embeddings to the grid
    state = dict(weights.state)
    if patch_size:
        state[KERNEL] = resample_patch_embedding(state[KERNEL], patch_size, method=method)
    state, resampled = resample_posemb(weights, state, new.known_grid, method=method)
    _write(path, state, new, weights)
    return {
        "command": "interpolate-posemb",
        "ckpt": ckpt,
        "out": str(path),
        "model": new.name,
        "format": weights.format,
        "method": method,
        "prefix_tokens": num_prefix,
        "before": _geometry(old, num_prefix),
        "after": _geometry(new, num_prefix),
        "left_out": ["preprocessing", "class names"] if path.suffix == ".npz" else [],
        "resampled": ([KERNEL] if new.patch_size != old.patch_size else []) + resampled,
        "similarity": _similarity(weights, state, resampled, new),
        "out_bytes": path.stat().st_size,
    }


def as_text(result: dict[str, Any]) -> str:
    before, after, similarity = result["before"], result["after"], result["similarity"]
    num_prefix = result["prefix_tokens"]

    def change(key: str, unit: str = "") -> str:
        old, new = ("x".join(map(str, v)) if isinstance(v, list) else v for v in (before[key], after[key]))
        return f"{old}{unit}, unchanged" if old == new else f"{old} -> {new}{unit}"

    # The geometry before and after
    prefix = f"{num_prefix or 'no'} prefix token{'s' * (num_prefix > 1)}"
    rows = [
        ("model", f"{result['model']}, {result['format']}"),
        ("image size", change("image_size", " px")),
        ("patch size", change("patch_size", " px")),
        ("grid", f"{change('patch_grid')}; {prefix} kept"),
        ("tokens", change("tokens")),
        ("GMACs", change("gmacs")),
        ("resampled", ", ".join(result["resampled"]) or "nothing"),
    ]
    # The quality of the resampling, and the new file
    if similarity:
        corners, midpoints = similarity["corners"], similarity["midpoints"]
        rows.append(("similarity", f"{corners:.4f} at corners, {midpoints:.4f} at midpoints (cosine)"))
    if result["left_out"]:
        rows.append(("left out", f"{' and '.join(result['left_out'])}: an .npz has no place for them"))
    rows.append(("written", f"{result['out']}, {result['out_bytes'] / 1e6:.1f} MB"))
    size = size_text(after["image_size"])
    rows.append(("next", f"vit finetune --ckpt {result['out']} --dataset DATA --res {size}"))
    return pairs(rows)


def _check_has_positions(weights: Weights, patch_size: int | None) -> None:
    arch = weights.architecture
    is_timms = pos_embed.is_timms(arch.posemb, arch.posemb_at)
    if not arch.patch_grid and "pos_embed" in weights.state:
        fix = "use it as it is: with --res every command resamples it as timm does"
        raise WeightsError(f"the patch grid of {arch.timm_name} is unknown", where=weights.source, fix=fix)
    if not arch.patch_grid or (is_timms and "pos_embed" not in weights.state):
        fix = "use it as it is: with --res every command takes it to another size"
        raise WeightsError(f"{arch.name} has no position embeddings", where=weights.source, fix=fix)
    if patch_size and (KERNEL not in weights.state or weights.state[KERNEL].shape[1] != 3):
        raise WeightsError(
            f"the patches of {arch.name} are not cut from pixels",
            where="--patch-size",
            fix="leave --patch-size out, or take a ViT without a ResNet in front",
        )


def _with_patch_size(arch: Architecture, patch_size: int) -> Architecture:
    """Return the network with other patches, under its paper name if it has one."""
    args = arch.model_args | {"patch_size": patch_size}
    name = re.sub(r"/\d+$", f"/{patch_size}", arch.name)
    if name == arch.name and arch.name not in VARIANTS:
        name = f"{arch.name}, patches of {patch_size}"
    if arch.name in VARIANTS:
        plain = (variant for variant in VARIANTS.values() if variant.is_plain)
        name = next((v.name for v in plain if v.timm_args.items() <= args.items()), name)
    return replace(arch, name=name, model_args=args)


def _write(path: Path, state: dict[str, Tensor], arch: Architecture, weights: Weights) -> None:
    if path.suffix == ".npz":
        if feature := unsupported_feature("npz", arch):
            square = ", or give a square --res" if feature == non_square_size(arch) else ""
            fix = f"end OUT in .safetensors{square}"
            raise VitError(
                f"the authors' .npz does not support {feature}", where=f"OUT, {arch.name}", fix=fix
            )
        write_official(path, state, heads=arch.model_args.get("num_heads"), names=SPELLINGS[0])
        return
    preprocessing = weights.preprocessing and weights.preprocessing | {"image_size": list(arch.image_size)}
    # The scores belong to the weights before
    metadata = {key: v for key, v in weights.metadata.items() if key not in ("top1", "top5", "loss")}
    metadata.setdefault(RESAMPLED_FROM, weights.source)
    write_weights_file(path, state, WeightsInfo(arch, preprocessing, weights.class_names, metadata))


def _geometry(arch: Architecture, num_prefix: int) -> dict[str, Any]:
    return {
        "image_size": list(arch.image_size),
        "patch_size": arch.patch_size,
        "patch_grid": list(arch.known_grid),
        "tokens": num_prefix + math.prod(arch.known_grid),
        "gmacs": round(forward_macs(arch) / 1e9, 3),
    }


def _similarity(
    weights: Weights, state: dict[str, Tensor], resampled: list[str], new: Architecture
) -> dict[str, float] | None:
    """Return the lowest similarity of any resampled table; None where no table has a row for each token."""
    old_grid, num_prefix = weights.architecture.known_grid, num_prefix_rows(weights)
    similarities = [
        similarity_at_landmarks(
            weights.state[name], old_grid, state[name], new.known_grid, num_prefix=num_prefix
        )
        for name in resampled
        if name == "pos_embed" or name.endswith("positions.table")
    ]
    return {k: min(s[k] for s in similarities) for k in similarities[0]} if similarities else None
