"""Inspection of one checkpoint: the numbers of --json, and the arrays that figures are drawn from.

n images inspected, of which M are shown; H x W the patch grid, N = H*W patches, S prefix tokens, T = S + N
tokens, L layers, A heads, K components, D filters or hidden width, P x Q a filter.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from timm.layers import ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from torch import Tensor, nn

from vitcli.data.sources.folders import NOTHING
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation.inference import EvalSettings
from vitcli.inspection import analysis, attention
from vitcli.inspection.attention import AttentionLayout, AttentionPass, patch_grid, probe_attention_layout
from vitcli.models.architecture import Architecture
from vitcli.models.pos_embed import Positions
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Inspect
from vitcli.weights.io import Weights
from vitcli.weights.load import load_for_inference

NO_IMAGES = "no images are given: --images IMAGES or --dataset DATA"
STD_EPS = 1e-5  # kinds of weight standardisation differ in this, by less than a figure shows
# Numbers of a figure and the arrays it is drawn from; or, in words, why the figure does not apply.
Part = tuple[dict[str, Any], dict[str, Tensor]] | str


@dataclass(frozen=True)
class Inspection:
    """Inspection of one checkpoint.

    Attributes:
        result: the object that --json prints.
        arrays: float32 unless stated otherwise; only those of figures that apply.
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
    """Inspect a checkpoint on the images of a split; without images, its weights alone.

    Raises:
        DataError: an image cannot be decoded.
        WeightsError: an attention weight or a feature is not finite.
    """
    # The checkpoint's network runs on the images.
    model, arch = load_for_inference(
        weights,
        preprocessing.image_size,
        recipe.model.posemb_resample,
        settings.device,
        settings.progress,
        needs_head=False,
    )
    options = recipe.inspect
    layout, shown = NO_IMAGES, None
    if split:
        layout = probe_attention_layout(model, arch)
        shown = attention.collect_attention(
            model,
            layout if isinstance(layout, AttentionLayout) else None,
            split,
            preprocessing,
            settings,
            num_shown=options.num_shown,
            residual=options.residual,
            renormalise=options.renormalise,
        )

    # A part is a figure's numbers and arrays, or the reason why it is left out.
    parts = {"filters": _filters(model, options), "position_similarity": _positions(model)}
    of_attention = {"attention_distance": _distance, "rollout": _rollout, "attention_by_head": _by_head}
    for name, part_of in of_attention.items():
        parts[name] = layout if isinstance(layout, str) else part_of(shown.stats, layout, options)
    parts["patch_features"] = _features(shown.stats, arch) if shown else NO_IMAGES
    applying = {name: part for name, part in parts.items() if not isinstance(part, str)}
    left_out = {name: part for name, part in parts.items() if isinstance(part, str)}
    if "attention_by_head" in left_out:  # drawn from the same array
        left_out["attention_by_layer"] = left_out["attention_by_head"]
    arrays = {name: array for _, part_arrays in applying.values() for name, array in part_arrays.items()}
    arrays |= {"images": shown.images_MHWC} if shown else {}
    grid = patch_grid(model)
    result = {
        "command": "inspect",
        "ckpt": str(recipe.model.ckpt),
        "model": arch.name,
        "numerics": weights.numerics,
        "resolution": preprocessing.resolution,
        "patch_size": arch.patch_size or (grid and arch.image_size[0] // grid[0]),
        "patch_grid": grid and list(grid),
        "preprocessing": preprocessing.summary(),
        "dataset": recipe.data.dataset,
        **_image_facts(split, shown),
        **_predictions(weights, split if recipe.data.dataset else None, shown),
        **{name: numbers for name, (numbers, _) in applying.items()},
        "left_out": left_out,
    }
    return Inspection(result, {name: array.cpu().contiguous().numpy() for name, array in arrays.items()})


def _image_facts(split: Split | None, shown: AttentionPass | None) -> dict[str, Any]:
    rows, skipped = (shown.rows_n, shown.skipped) if shown else ([], [])
    return {
        "eval_split": split.name if split else None,
        "num_images": len(rows),
        "shown": [split.where_is(row) for row in rows[: len(shown.images_MHWC)]] if shown else [],
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        **(split.left_out if split else NOTHING).summary(),
    }


def _predictions(weights: Weights, split: Split | None, shown: AttentionPass | None) -> dict[str, Any]:
    """Return label and prediction of each image shown; nothing of a network without a head.

    Args:
        split: None of images that have no labels.
    """
    if shown is None or shown.stats.logits_MK is None:
        return {}
    names = weights.class_names or tuple(f"class {k}" for k in range(weights.architecture.num_classes))
    top = shown.stats.logits_MK.double().softmax(dim=1).max(dim=1)
    predictions = []
    for number, (probability, predicted) in enumerate(zip(*map(Tensor.tolist, top), strict=True)):
        label = shown.labels_n[number]
        labels = label if isinstance(label, list) else [label]
        known = split.class_names if split else None
        name = ", ".join(known[k] for k in labels if k >= 0) if known else None
        predictions.append({"label": name, "predicted": names[predicted], "probability": probability})
    return {"predictions": predictions}


def _filters(model: nn.Module, options: Inspect) -> Part:
    filters_DCPQ = rgb_filters(model)
    if filters_DCPQ is None:
        return "its first layer is not a convolution over red, green and blue"
    components_KCPQ, fractions_K = analysis.filter_components(filters_DCPQ.cpu(), options.components)
    if not len(fractions_K):
        return "all its filters are equal"
    numbers = {
        "num_filters": len(filters_DCPQ),
        "size": list(filters_DCPQ.shape[2:]),
        "variance_shares": fractions_K.tolist(),
    }
    return numbers, {"filters": components_KCPQ.float()}


def rgb_filters(model: nn.Module) -> Tensor | None:
    """Return the filters (D, 3, P, Q) of the first layer, or None if it is not a convolution of RGB.

    Those of a convolution with weight standardisation are returned standardised, as they are used.
    """
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None or first.in_channels != 3 or first.groups != 1:
        return None
    filters_DCPQ = first.weight.detach()
    is_scaled = isinstance(first, ScaledStdConv2d | ScaledStdConv2dSame)
    if not is_scaled and not isinstance(first, StdConv2d | StdConv2dSame):
        return filters_DCPQ
    std, mean = torch.std_mean(filters_DCPQ, dim=(1, 2, 3), correction=0, keepdim=True)
    standardised_DCPQ = (filters_DCPQ - mean) / std.clamp_min(STD_EPS)
    return standardised_DCPQ * first.gain.detach() * first.scale if is_scaled else standardised_DCPQ


def _positions(model: nn.Module) -> Part:
    posemb_ND, grid = patch_positions(model), patch_grid(model)
    if isinstance(posemb_ND, str):
        return posemb_ND
    similarity_NN = analysis.position_similarity(posemb_ND.cpu())
    numbers = analysis.similarity_by_offset(similarity_NN, grid)
    return numbers, {"position_similarity": similarity_NN.float().reshape(*grid, *grid)}


def patch_positions(model: nn.Module) -> Tensor | str:
    """Return the position embedding of each patch (N, D); or, in words, why there is none.

    Of embeddings at every layer, that of the first layer is returned.
    """
    table_1TD = getattr(model, "pos_embed", None)
    if not isinstance(table_1TD, Tensor):
        positions = next((part for part in model.modules() if isinstance(part, Positions)), None)
        if positions is None:
            return "no table of position embeddings is added to its patches"
        table_1TD = positions()
    # Some tables have rows for the prefix tokens, some for the patches alone.
    grid, table_TD = patch_grid(model), table_1TD.detach()[0]
    num_prefix = len(table_TD) - grid[0] * grid[1] if grid is not None and table_1TD.ndim == 3 else -1
    if num_prefix not in (0, getattr(model, "num_prefix_tokens", 0)):
        return "its position embeddings do not belong to one patch each"
    return table_TD[num_prefix:]


def _distance(stats: attention.AttentionStats, layout: AttentionLayout, options: Inspect) -> Part:
    distance_nLA = stats.distance_nLA
    mean_LA, has_spread = distance_nLA.mean(dim=0), len(distance_nLA) > 1
    # Uniform attention gives every token the same weight, prefix tokens included.
    num_patches = layout.grid[0] * layout.grid[1]
    of_patches = 1.0 if options.renormalise else num_patches / (num_patches + layout.num_prefix)
    uniform = of_patches * float(analysis.patch_distances(layout.grid, layout.patch_size).mean())
    numbers = {
        "unit": "pixels",
        "renormalised": options.renormalise,
        "prefix_tokens": layout.num_prefix,
        "has_class_token": layout.has_class_token,
        "uniform": uniform,
        "by_layer": mean_LA.mean(dim=1).tolist(),
        "mean": mean_LA.tolist(),
        "std_over_images": distance_nLA.std(dim=0).tolist() if has_spread else None,
    }
    return numbers, {"attention_distance": distance_nLA}


def _rollout(stats: attention.AttentionStats, layout: AttentionLayout, options: Inspect) -> Part:
    numbers = {"residual": options.residual, "full_at": options.full_at, "read_from": layout.read_from}
    return numbers, {"rollout": stats.rollout_MN.unflatten(1, layout.grid)}


def _by_head(stats: attention.AttentionStats, layout: AttentionLayout, options: Inspect) -> Part:
    numbers = {"num_layers": layout.num_layers, "num_heads": layout.num_heads, "read_from": layout.read_from}
    return numbers, {"attention_by_head": stats.heads_MLAN.unflatten(-1, layout.grid)}


def _features(stats: attention.AttentionStats, arch: Architecture) -> Part:
    features_MHWD = stats.features_MHWD
    if features_MHWD is None:
        return f"{arch.name} has no features by place after its last layer"
    grid = features_MHWD.shape[1:3]
    colours_MN3, fractions_3 = analysis.feature_colours(features_MHWD.flatten(1, 2))
    numbers = {"grid": list(grid), "variance_shares": fractions_3.tolist()}
    return numbers, {"patch_colours": colours_MN3.float().unflatten(1, grid)}
