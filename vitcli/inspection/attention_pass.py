"""The pass over pictures that looks inside the network: how far it looks, and at what; memory stays bounded.

A layer's attention weights are used up as soon as they are made, so that only one layer's are in memory.
n images looked at, of which the first M are shown; B batch, L layers, A heads, T tokens, N patches, D width.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.data.loader import eval_batches
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import forward
from vitcli.inspection.analysis import attention_distance, patch_distances, rollout_layer, seen_by_output
from vitcli.inspection.attention import Attends, feature_map, watched
from vitcli.output.progress import Console

MOST_WEIGHTS = 2**25  # attention weights of a batch in one layer: 128 MiB in fp32, and a few copies of it


@dataclass(frozen=True)
class Found:
    """What was found in pictures; None for what the network has not.

    Attributes:
        distance_nLA: pixels, see `analysis.attention_distance`; float64.
        rollout_MN: what the output gives to each patch by way of all layers, see `analysis.rollout_layer`.
        heads_MLAN: what the output's token gives to each patch in each layer, by head.
        features_MHWD: features by place after the last layer.
    """

    distance_nLA: Tensor | None
    rollout_MN: Tensor | None
    heads_MLAN: Tensor | None
    features_MHWD: Tensor | None


@dataclass(frozen=True)
class Seen:
    """The pictures of a split, and what was found in them.

    Attributes:
        rows_n: rows that were looked at, in order; the first M are shown.
        images_MHWC: uint8, as the network saw them.
        skipped: places of images that could not be decoded.
    """

    found: Found
    rows_n: list[int]
    images_MHWC: Tensor
    skipped: list[str]


def look(
    model: nn.Module,
    attends: Attends | None,
    split: Split,
    preprocessing: Preprocessing,
    *,
    num_shown: int,
    residual: bool,
    renormalise: bool,
    device: torch.device,
    batch_size: int,
    on_bad_image: str,
    num_threads: int,
    precision: str,
    console: Console,
) -> Seen:
    """Look at every picture of the split, at the first `num_shown` of them closely.

    Args:
        attends: None for a network without attention over patches, of which only features are seen.
        residual: see `analysis.rollout_layer`.
        renormalise: see `analysis.attention_distance`.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
        WeightsError: what the network computes is not finite.
    """
    at_once, multiple = _batch_size(attends, batch_size)
    distances_NN = attends and patch_distances(attends.grid, attends.patch_size).float().to(device)
    batches = eval_batches(
        split,
        preprocessing,
        batch_size=at_once,
        rank=0,
        world_size=1,
        on_bad_image=on_bad_image,
        num_threads=num_threads,
    )
    parts, images, rows, skipped = [], [], [], []

    def network(_: Tensor, images_BCHW: Tensor) -> Found:
        closely = max(0, num_shown - len(rows))
        if attends is None:
            return Found(None, None, None, _features(model, model.forward_features(images_BCHW[:closely])))
        return look_at(
            model, attends, images_BCHW, distances_NN, closely, residual=residual, renormalise=renormalise
        )

    passed = forward.passes(
        model, network, batches, preprocessing, device=device, precision=precision, multiple=multiple
    )
    for batch, found in forward.watched(passed, console, "inspect", total=len(split), at_once=1):
        skipped += batch.skipped
        count = len(batch.rows_B)
        if not count:
            continue
        own = [None if numbers is None else numbers[:count] for numbers in vars(found).values()]
        for numbers in own:  # without the blank images that fill up a batch
            if numbers is not None:
                forward.check_finite(numbers, batch, so="there is nothing to see", precision=precision)
        parts.append(Found(*own))
        images.append(batch.images_BCHW[: max(0, num_shown - len(rows))].permute(0, 2, 3, 1))
        rows += batch.rows_B.tolist()
    if not rows:
        raise forward.nothing_decoded(split)
    return _together(parts, rows, images, skipped)


def look_at(
    model: nn.Module,
    attends: Attends,
    images_BCHW: Tensor,
    distances_NN: Tensor,
    num_shown: int,
    *,
    residual: bool,
    renormalise: bool,
) -> Found:
    """What one forward pass shows of its images, and closely of the first `num_shown`; on the CPU.

    Args:
        distances_NN: float32, see `analysis.patch_distances`.
    """
    output = {"num_prefix": attends.num_prefix, "reads_token": attends.reads_token}
    distances, heads, rollout_MTT = [], [], None

    def see(_: int, weights_BATT: Tensor) -> None:
        nonlocal rollout_MTT
        weights_BATT = weights_BATT.float()
        with torch.autocast(weights_BATT.device.type, enabled=False):  # products of weights are no bf16
            distances.append(
                attention_distance(
                    weights_BATT, distances_NN, num_prefix=attends.num_prefix, renormalise=renormalise
                )
            )
            if num_shown:
                weights_MATT = weights_BATT[:num_shown]
                heads.append(seen_by_output(weights_MATT, **output).cpu())
                rollout_MTT = rollout_layer(rollout_MTT, weights_MATT, residual=residual)

    with watched(model, see):
        encoded = model.forward_features(images_BCHW)
    distance_BLA = torch.stack(distances, dim=1).double().cpu()
    if not num_shown:
        return Found(distance_BLA, None, None, None)
    rollout_MN = seen_by_output(rollout_MTT, **output).cpu()
    return Found(distance_BLA, rollout_MN, torch.stack(heads, dim=1), _features(model, encoded[:num_shown]))


def _batch_size(attends: Attends | None, wanted: int) -> tuple[int, int]:
    """Images of a forward pass, and what they are filled up to a multiple of; by the bound on memory."""
    fitting = MOST_WEIGHTS // attends.weights_an_image if attends else wanted
    return (1, 1) if fitting < forward.MULTIPLE else (min(wanted, fitting), forward.MULTIPLE)


def _features(model: nn.Module, encoded: Any) -> Tensor | None:
    found = feature_map(model, encoded)
    return None if found is None else found.float().cpu()


def _together(parts: list[Found], rows: list[int], images: list[Tensor], skipped: list[str]) -> Seen:
    def joined(name: str) -> Tensor | None:
        some = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        return torch.cat(some) if some else None

    return Seen(Found(*(joined(one.name) for one in fields(Found))), rows, torch.cat(images), skipped)
