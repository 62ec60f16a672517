"""One checkpoint looked into: what pictures are drawn from, and the numbers of --json; no command of its own.

n images looked at, of which M are shown; H x W the patch grid, L layers, A heads, K components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.setup import for_inference
from vitcli.inspection import analysis, attention
from vitcli.inspection.attention import (
    AttentionLayout,
    AttentionPass,
    patch_grid,
    patch_positions,
    probe_attention_layout,
    rgb_filters,
)
from vitcli.models.architecture import Architecture
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Inspect
from vitcli.weights.io import Weights

NO_PICTURES = "no pictures are named: --images PICTURES or --dataset DATA"
# What there is to say of a figure, and the arrays it is drawn from; or in words why there is no such figure.
Part = tuple[dict[str, Any], dict[str, Tensor]] | str


@dataclass(frozen=True)
class Inspection:
    """What was seen of one checkpoint.

    Attributes:
        result: the object that --json prints.
        arrays: float32 unless said otherwise; only those of figures that there are.
            filters (K, 3, P, Q) of length 1; position_similarity (H, W, H, W);
            attention_distance (n, L, A) pixels, float64; images (M, height, width, 3) uint8;
            rollout (M, H, W); attention_by_head (M, L, A, H, W); patch_colours (M, H, W, 3) from 0 to 1.
    """

    result: dict[str, Any]
    arrays: dict[str, np.ndarray]


def inspect_checkpoint(
    weights: Weights,
    recipe: Recipe,
    split: Split | None,
    preprocessing: Preprocessing,
    settings: EvalSettings,
) -> Inspection:
    """Everything there is to see; without pictures, of the weights alone.

    Raises:
        DataError: a picture cannot be decoded.
        WeightsError: what the network computes is not finite.
    """
    model, arch = for_inference(weights, recipe, preprocessing, settings, needs_head=False)
    wanted = recipe.inspect
    how = probe_attention_layout(model, arch) if split else NO_PICTURES
    seen = None
    if split:
        closely = split.part(0, min(wanted.num_shown, len(split)), name=split.name)
        seen = attention.collect_attention(
            model,
            how if isinstance(how, AttentionLayout) else None,
            split if isinstance(how, AttentionLayout) else closely,
            preprocessing,
            settings,
            num_shown=wanted.num_shown,
            residual=wanted.residual,
            renormalise=wanted.renormalise,
        )
    numbers, arrays, left_out = _sorted(
        {
            "filters": _filters(model, wanted),
            "position_similarity": _positions(model),
            "attention_distance": _distance(seen, how, wanted),
            "rollout": _rollout(seen, how, wanted),
            "attention_by_head": _by_head(seen, how),
            "patch_features": _features(seen, arch) if seen else NO_PICTURES,
        }
    )
    result = {
        "command": "inspect",
        "ckpt": str(recipe.model.ckpt),
        **_about(weights, model, arch, preprocessing),
        "dataset": recipe.data.dataset,
        **_pictures(split, seen),
        **numbers,
        "left_out": left_out,
    }
    shown = {"images": seen.images_MHWC} if seen else {}
    return Inspection(
        result, {key: array.cpu().contiguous().numpy() for key, array in (arrays | shown).items()}
    )


def _sorted(parts: dict[str, Part]) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, str]]:
    """Numbers by figure, arrays by name, and reasons by figure that is not there."""
    told = {name: part for name, part in parts.items() if not isinstance(part, str)}
    left_out = {name: part for name, part in parts.items() if isinstance(part, str)}
    if "attention_by_head" in left_out:  # drawn from the same
        left_out["attention_by_layer"] = left_out["attention_by_head"]
    arrays = {key: array for _, of_part in told.values() for key, array in of_part.items()}
    return {name: numbers for name, (numbers, _) in told.items()}, arrays, left_out


def _about(
    weights: Weights, model: nn.Module, arch: Architecture, preprocessing: Preprocessing
) -> dict[str, Any]:
    grid = patch_grid(model)
    return {
        "model": arch.name,
        "numerics": weights.numerics,
        "resolution": preprocessing.resolution,
        "patch_size": arch.patch_size or (grid and arch.image_size[0] // grid[0]),
        "patch_grid": grid and list(grid),
        "preprocessing": preprocessing.summary(),
    }


def _pictures(split: Split | None, seen: AttentionPass | None) -> dict[str, Any]:
    rows = seen.rows_n if seen else []
    skipped = seen.skipped if seen else []
    return {
        "eval_split": split.name if split else None,
        "num_images": len(rows),
        "shown": [split.where_is(row) for row in rows[: len(seen.images_MHWC)]] if seen else [],
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
    }


def _filters(model: nn.Module, wanted: Inspect) -> Part:
    filters_DCPQ = rgb_filters(model)
    if filters_DCPQ is None:
        return "its first layer is no convolution over red, green and blue"
    components_KCPQ, shares_K = analysis.filter_components(filters_DCPQ.cpu(), wanted.components)
    if not len(shares_K):
        return "its filters are all alike"
    numbers = {
        "num_filters": len(filters_DCPQ),
        "size": list(filters_DCPQ.shape[2:]),
        "variance_shares": shares_K.tolist(),
    }
    return numbers, {"filters": components_KCPQ.float()}


def _positions(model: nn.Module) -> Part:
    posemb_ND, grid = patch_positions(model), patch_grid(model)
    if isinstance(posemb_ND, str):
        return posemb_ND
    similarity_NN = analysis.position_similarity(posemb_ND.cpu())
    numbers = analysis.similarity_by_place(similarity_NN, grid)
    return numbers, {"position_similarity": similarity_NN.float().reshape(*grid, *grid)}


def _distance(seen: AttentionPass | None, how: AttentionLayout | str, wanted: Inspect) -> Part:
    if isinstance(how, str):
        return how
    distance_nLA = seen.found.distance_nLA
    mean_LA, has_spread = distance_nLA.mean(dim=0), len(distance_nLA) > 1
    numbers = {
        "unit": "pixels",
        "renormalised": wanted.renormalise,
        "prefix_tokens": how.num_prefix,
        "has_class_token": how.has_class_token,
        "uniform": _uniform(how, wanted),
        "by_layer": mean_LA.mean(dim=1).tolist(),
        "mean": mean_LA.tolist(),
        "std_over_images": distance_nLA.std(dim=0).tolist() if has_spread else None,
    }
    return numbers, {"attention_distance": distance_nLA}


def _uniform(how: AttentionLayout, wanted: Inspect) -> float:
    """Pixels that attention looks far which is the same everywhere, prefix tokens among that."""
    num_patches = how.grid[0] * how.grid[1]
    of_patches = 1.0 if wanted.renormalise else num_patches / (num_patches + how.num_prefix)
    return of_patches * float(analysis.patch_distances(how.grid, how.patch_size).mean())


def _rollout(seen: AttentionPass | None, how: AttentionLayout | str, wanted: Inspect) -> Part:
    if isinstance(how, str):
        return how
    numbers = {"residual": wanted.residual, "full_at": wanted.full_at, "read_from": how.read_from}
    return numbers, {"rollout": seen.found.rollout_MN.unflatten(1, how.grid)}


def _by_head(seen: AttentionPass | None, how: AttentionLayout | str) -> Part:
    if isinstance(how, str):
        return how
    numbers = {"num_layers": how.num_layers, "num_heads": how.num_heads, "read_from": how.read_from}
    return numbers, {"attention_by_head": seen.found.heads_MLAN.unflatten(-1, how.grid)}


def _features(seen: AttentionPass, arch: Architecture) -> Part:
    features_MHWD = seen.found.features_MHWD
    if features_MHWD is None:
        return f"{arch.name} has no features by place after its last layer"
    grid = features_MHWD.shape[1:3]
    colours_MN3, shares_3 = analysis.feature_colours(features_MHWD.flatten(1, 2))
    numbers = {"grid": list(grid), "variance_shares": shares_3.tolist()}
    return numbers, {"patch_colours": colours_MN3.float().unflatten(1, grid)}
