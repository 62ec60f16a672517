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
from vitcli.models.resample import resample_patch_embedding, similarity_at_landmarks
from vitcli.models.variants import VARIANTS
from vitcli.output.atomic import check_out
from vitcli.output.text import pairs
from vitcli.weights.formats import check_supported, write_official
from vitcli.weights.io import Weights, read_weights, write_weights_file
from vitcli.weights.jax import SPELLINGS
from vitcli.weights.load import num_prefix_rows
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
) -> dict[str, Any]:
    """Write the weights for another patch grid, and say what changed.

    Args:
        out: a .safetensors file, or an official .npz file for a square grid.
        image_size: height and width in pixels; as it was if None.
        method: of `posemb.resample_posemb`, and of `posemb.resample_patch_embedding`.
        patch_size: in pixels; as it was if None.
    """
    path = Path(out)
    check_out(
        path, overwrite=overwrite, option="OUT", suffixes=(".safetensors", ".npz"), folder_error=VitError
    )
    if image_size is None and patch_size is None:
        raise VitError(
            "there is nothing to do: neither another image size nor another patch size is given",
            where="--res and --patch-size",
            fix="--res 384, or --res 384x512 (height x width), or --patch-size 8",
        )
    weights = read_weights(ckpt, model_name=model_name)
    _check_has_positions(weights, patch_size)
    new = _for_patches(weights.architecture, patch_size)
    new = replace(new, image_size=image_size or new.image_size)
    check_image_size(new)
    state = dict(weights.state)
    if patch_size:
        state[KERNEL] = resample_patch_embedding(state[KERNEL], patch_size, method=method)
    old = weights.architecture
    state, resampled = pos_embed.resample(
        state,
        kind=old.posemb,
        place=old.posemb_at,
        old_grid=old.patch_grid,
        new_grid=new.patch_grid,
        num_prefix=num_prefix_rows(weights),
        method=method,
    )
    _write(path, state, new, weights)
    return {
        "command": "interpolate-posemb",
        "ckpt": ckpt,
        "out": str(path),
        "model": new.name,
        "format": weights.format,
        "method": method,
        "prefix_tokens": num_prefix_tokens(weights.shapes),
        "before": _described(old, weights),
        "after": _described(new, weights),
        "left_out": ["preprocessing", "class names"] if path.suffix == ".npz" else [],
        "resampled": ([KERNEL] if new.patch_size != old.patch_size else []) + resampled,
        "similarity": _similarity(weights, state, resampled, new),
        "out_bytes": path.stat().st_size,
    }


def as_text(result: dict[str, Any]) -> str:
    """For a person."""
    before, after, similarity = result["before"], result["after"], result["similarity"]

    def change(key: str, unit: str = "") -> str:
        old, new = (_sides(side[key]) for side in (before, after))
        return f"{old}{unit}, as it was" if old == new else f"{old} -> {new}{unit}"

    prefix = {0: "no prefix token", 1: "1 prefix token"}
    kept = prefix.get(result["prefix_tokens"], f"{result['prefix_tokens']} prefix tokens")
    rows = [
        ("model", f"{result['model']}, {result['format']}"),
        ("image", change("image_size", " px")),
        ("patches", change("patch_size", " px")),
        ("grid", f"{change('patch_grid')}; {kept} kept"),
        ("tokens", change("tokens")),
        ("GMACs", change("gmacs")),
        ("resampled", ", ".join(result["resampled"]) or "nothing"),
    ]
    if similarity:
        corners, midpoints = similarity["corners"], similarity["midpoints"]
        rows.append(
            ("similarity", f"at the corners {corners:.4f}, at the midpoints {midpoints:.4f} (cosine)")
        )
    height, width = after["image_size"]
    size = str(height) if height == width else f"{height}x{width}"
    if result["left_out"]:
        rows.append(("left out", f"{' and '.join(result['left_out'])}: an .npz has no place for them"))
    rows.append(("written", f"{result['out']}, {result['out_bytes'] / 1e6:.1f} MB"))
    rows.append(("next", f"vit finetune --ckpt {result['out']} --dataset DATA --res {size}"))
    return pairs(rows)


def _sides(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_has_positions(weights: Weights, patch_size: int | None) -> None:
    arch = weights.architecture
    is_timms = pos_embed.is_timms(arch.posemb, arch.posemb_at)
    if not arch.patch_grid and "pos_embed" in weights.state:
        raise WeightsError(
            f"the name {arch.timm_name} does not tell its patch grid",
            where=weights.source,
            fix="it can be used at its own size alone",
        )
    if not arch.patch_grid or (is_timms and "pos_embed" not in weights.state):
        raise WeightsError(
            f"{arch.name} has no position embeddings",
            where=weights.source,
            fix="use it as it is: it takes images of any size",
        )
    if patch_size and (KERNEL not in weights.state or weights.state[KERNEL].shape[1] != 3):
        raise WeightsError(
            f"the patches of {arch.name} are not cut from pixels",
            where="--patch-size",
            fix="leave --patch-size out, or take a ViT without a ResNet in front",
        )


def _for_patches(arch: Architecture, patch_size: int | None) -> Architecture:
    """The same network with other patches, by its paper name where it has one."""
    if patch_size is None:
        return arch
    args = arch.model_args | {"patch_size": patch_size}
    name = re.sub(r"/\d+$", f"/{patch_size}", arch.name)
    if name == arch.name and arch.name not in VARIANTS:
        name = f"{arch.name}, patches of {patch_size}"
    if arch.name in VARIANTS:
        args_of = {v.name: v.timm_args for v in VARIANTS.values() if v.is_plain}
        known = (other for other, its_args in args_of.items() if its_args.items() <= args.items())
        name = next(known, name)
    return replace(arch, name=name, model_args=args)


def _write(path: Path, state: dict[str, Tensor], arch: Architecture, weights: Weights) -> None:
    preprocessing = weights.preprocessing
    if preprocessing:
        preprocessing = preprocessing | {"image_size": list(arch.image_size)}
    if path.suffix == ".safetensors":
        write_weights_file(
            path,
            state,
            arch,
            preprocessing=preprocessing,
            class_names=weights.class_names,
            metadata={**_without_scores(weights.metadata), "interpolated_from": weights.source},
        )
        return
    check_supported("npz", arch)
    write_official(path, state, heads=arch.model_args.get("num_heads"), names=SPELLINGS[0])


def _without_scores(metadata: dict) -> dict:
    """What was measured was measured on the network before."""
    return {key: value for key, value in metadata.items() if key not in ("top1", "top5", "loss")}


def _described(arch: Architecture, weights: Weights) -> dict[str, Any]:
    return {
        "image_size": list(arch.image_size),
        "patch_size": arch.patch_size,
        "patch_grid": list(arch.patch_grid),
        "tokens": num_prefix_tokens(weights.shapes) + math.prod(arch.patch_grid),
        "gmacs": round(forward_macs(arch) / 1e9, 3),
    }


def _similarity(
    weights: Weights, state: dict[str, Tensor], resampled: list[str], new: Architecture
) -> dict[str, float] | None:
    """Of the least alike of the tables that were resampled; None where no table has a row for each token."""
    old_grid, num_prefix = weights.architecture.patch_grid, num_prefix_rows(weights)
    found = [
        similarity_at_landmarks(
            weights.state[name], old_grid, state[name], new.patch_grid, num_prefix=num_prefix
        )
        for name in resampled
        if name == "pos_embed" or name.endswith("positions.table")
    ]
    return {key: min(each[key] for each in found) for key in found[0]} if found else None
