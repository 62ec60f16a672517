"""The attention weights of a network while it computes, and where its tokens stand; nothing is kept.

B images, A heads, S prefix tokens, N = H*W patches, T = S + N tokens, D hidden width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from timm.layers import ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.inspection.analysis import attention_distance, patch_distances, rollout_layer, seen_by_output
from vitcli.models.architecture import Architecture
from vitcli.models.features import has_normed_token
from vitcli.models.pos_embed import Positions

CLASS_TOKEN, PATCHES = "class token", "mean of the patches"
STD_EPS = 1e-5  # each kind of standardisation has another epsilon, below what a picture shows


@dataclass(frozen=True)
class AttentionLayout:
    """How a network attends over the patches of an image.

    Attributes:
        grid: (H, W) in patches.
        patch_size: pixels from one patch to the next, of a hybrid its whole stride.
        num_prefix: tokens before the patches; `has_class_token` if one of them is the class token.
        read_from: what the output is read from, in words.
    """

    num_layers: int
    num_heads: int
    num_prefix: int
    grid: tuple[int, int]
    patch_size: int
    has_class_token: bool
    read_from: str

    @property
    def reads_token(self) -> bool:
        """Whether the output is read from the class token, else from the patches."""
        return self.read_from == CLASS_TOKEN

    @property
    def weights_an_image(self) -> int:
        """Attention weights of one image in one layer: A * T * T."""
        num_tokens = self.num_prefix + self.grid[0] * self.grid[1]
        return self.num_heads * num_tokens**2


@contextmanager
def record_attention(model: nn.Module, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Let `see` have each layer's attention weights (B, A, T, T) as they are made, by number from 0.

    Fused attention never makes these weights, so it is off in the meantime, in these layers alone.
    """
    layers = attention_layers(model)
    hooks = [
        layer.attn_drop.register_forward_hook(lambda _, given, __, number=number: see(number, given[0]))
        for number, layer in enumerate(layers)
    ]
    was_fused = {layer: layer.fused_attn for layer in layers if hasattr(layer, "fused_attn")}
    try:
        for layer in was_fused:
            layer.fused_attn = False
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, fused in was_fused.items():
            layer.fused_attn = fused


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The attention of each block, in which timm's networks drop out weights; none without such blocks."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        return []
    found = [
        [part for part in block.modules() if isinstance(getattr(part, "attn_drop", None), nn.Module)]
        for block in blocks
    ]
    return [layers[0] for layers in found] if all(len(layers) == 1 for layers in found) else []


def probe_attention_layout(model: nn.Module, arch: Architecture) -> AttentionLayout | str:
    """How the network attends, found by one image of zeros; or, in words, why that has no pictures.

    The attention of windows, of channels, or of tokens that are merged on the way has no one grid.
    """
    if not attention_layers(model):
        return f"{arch.name} has no blocks of one self-attention each over patches"
    shapes: dict[int, tuple[int, ...]] = {}
    image_1CHW = torch.zeros(1, 3, *arch.image_size, device=next(model.parameters()).device)
    with (
        torch.no_grad(),
        record_attention(model, lambda number, weights: shapes.update({number: weights.shape})),
    ):
        model.forward_features(image_1CHW)
    grid, num_prefix = patch_grid(model), getattr(model, "num_prefix_tokens", 0)
    told = set(shapes.values())
    if grid is None or len(told) != 1:
        return f"the blocks of {arch.name} do not all attend over the same patches"
    _, num_heads, *tokens = told.pop()
    if tokens != 2 * [num_prefix + grid[0] * grid[1]]:
        return f"the blocks of {arch.name} attend over other things than {grid[0]}x{grid[1]} patches"
    return AttentionLayout(
        num_layers=len(shapes),
        num_heads=num_heads,
        num_prefix=num_prefix,
        grid=grid,
        patch_size=arch.patch_size or arch.image_size[0] // grid[0],
        has_class_token=getattr(model, "cls_token", None) is not None,
        read_from=_read_from(model),
    )


def _read_from(model: nn.Module) -> str:
    if has_normed_token(model):
        return CLASS_TOKEN
    pools_itself = getattr(model, "global_pool", "avg") != "avg"  # by attention, or the largest of all
    return f"{PATCHES}, in place of its own pooling" if pools_itself else PATCHES


def patch_grid(model: nn.Module) -> tuple[int, int] | None:
    """Rows and columns of patches at the size the network is built for; None if it has no patches."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    return tuple(grid) if grid else None


def rgb_filters(model: nn.Module) -> Tensor | None:
    """(D, 3, P, Q), what the first layer multiplies the image with; None if that is no convolution of RGB.

    Those of a convolution with weight standardisation are given standardised, as they are used.
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


def patch_positions(model: nn.Module) -> Tensor | str:
    """(N, D), what is added to each patch for its place; or, in words, why there is nothing of the kind."""
    table = getattr(model, "pos_embed", None)
    if isinstance(table, Tensor):
        return _of_patches(model, table)
    own = [part for part in model.modules() if isinstance(part, Positions)]
    if own:  # of those at every layer, the first layer's
        return _of_patches(model, own[0]())
    return "no table of position embeddings is added to its patches"


def feature_map(model: nn.Module, encoded: Any) -> Tensor | None:
    """(B, H, W, D), features by place, of what `model.forward_features` made; None without places."""
    if not isinstance(encoded, Tensor):
        return None
    grid = patch_grid(model)
    if encoded.ndim == 3 and grid is not None:
        patches_BND = encoded[:, getattr(model, "num_prefix_tokens", 0) :]
        return patches_BND.unflatten(1, grid) if patches_BND.shape[1] == grid[0] * grid[1] else None
    if encoded.ndim == 4:
        channels = getattr(model, "num_features", None)
        if encoded.shape[1] == channels:
            return encoded.permute(0, 2, 3, 1)
        return encoded if encoded.shape[3] == channels else None
    return None


def _of_patches(model: nn.Module, table_1TD: Tensor) -> Tensor | str:
    grid = patch_grid(model)
    is_table = grid is not None and table_1TD.ndim == 3
    table_TD = table_1TD.detach()[0]
    num_prefix = len(table_TD) - grid[0] * grid[1] if is_table else -1
    if num_prefix not in (0, getattr(model, "num_prefix_tokens", 0)):
        return "its position embeddings do not stand for one patch each"
    return table_TD[num_prefix:]


MOST_WEIGHTS = 2**25  # attention weights of a batch in one layer: 128 MiB in fp32, and a few copies of it


@dataclass(frozen=True)
class AttentionStats:
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
class AttentionPass:
    """The pictures of a split, and what was found in them.

    Attributes:
        rows_n: rows that were looked at, in order; the first M are shown.
        images_MHWC: uint8, as the network saw them.
        skipped: places of images that could not be decoded.
    """

    found: AttentionStats
    rows_n: list[int]
    images_MHWC: Tensor
    skipped: list[str]


def collect_attention(
    model: nn.Module,
    attends: AttentionLayout | None,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    num_shown: int,
    residual: bool,
    renormalise: bool,
) -> AttentionPass:
    """Look at every picture of the split, at the first `num_shown` of them closely.

    Args:
        attends: None for a network without attention over patches, of which only features are seen.
        residual: see `analysis.rollout_layer`.
        renormalise: see `analysis.attention_distance`.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none at all could be.
        WeightsError: what the network computes is not finite.
    """
    at_once, multiple = _batch_size(attends, settings.batch_size)
    device, precision = settings.device, settings.precision
    distances_NN = attends and patch_distances(attends.grid, attends.patch_size).float().to(device)
    batches = replace(settings, batch_size=at_once).batches(split, preprocessing, all_rows=True)
    parts, images, rows, skipped = [], [], [], []

    def network(_: Tensor, images_BCHW: Tensor) -> AttentionStats:
        closely = max(0, num_shown - len(rows))
        if attends is None:
            return AttentionStats(
                None, None, None, _features(model, model.forward_features(images_BCHW[:closely]))
            )
        return attention_stats(
            model, attends, images_BCHW, distances_NN, closely, residual=residual, renormalise=renormalise
        )

    passed = inference.forward_batches(
        model, network, batches, preprocessing, device=device, precision=precision, multiple=multiple
    )
    for batch, found in inference.report_progress(
        passed, settings.progress, "inspect", total=len(split), num_processes=1
    ):
        skipped += batch.skipped
        count = len(batch.rows_B)
        if not count:
            continue
        own = [None if numbers is None else numbers[:count] for numbers in vars(found).values()]
        for numbers in own:  # without the blank images that fill up a batch
            if numbers is not None:
                inference.check_finite(numbers, batch, so="there is nothing to see", precision=precision)
        parts.append(AttentionStats(*own))
        images.append(batch.images_BCHW[: max(0, num_shown - len(rows))].permute(0, 2, 3, 1))
        rows += batch.rows_B.tolist()
    if not rows:
        raise inference.nothing_decoded(split)
    return _together(parts, rows, images, skipped)


def attention_stats(
    model: nn.Module,
    attends: AttentionLayout,
    images_BCHW: Tensor,
    distances_NN: Tensor,
    num_shown: int,
    *,
    residual: bool,
    renormalise: bool,
) -> AttentionStats:
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

    with record_attention(model, see):
        encoded = model.forward_features(images_BCHW)
    distance_BLA = torch.stack(distances, dim=1).double().cpu()
    if not num_shown:
        return AttentionStats(distance_BLA, None, None, None)
    rollout_MN = seen_by_output(rollout_MTT, **output).cpu()
    return AttentionStats(
        distance_BLA, rollout_MN, torch.stack(heads, dim=1), _features(model, encoded[:num_shown])
    )


def _batch_size(attends: AttentionLayout | None, wanted: int) -> tuple[int, int]:
    """Images of a forward pass, and what they are filled up to a multiple of; by the bound on memory."""
    fitting = MOST_WEIGHTS // attends.weights_an_image if attends else wanted
    return (1, 1) if fitting < inference.MULTIPLE else (min(wanted, fitting), inference.MULTIPLE)


def _features(model: nn.Module, encoded: Any) -> Tensor | None:
    found = feature_map(model, encoded)
    return None if found is None else found.float().cpu()


def _together(
    parts: list[AttentionStats], rows: list[int], images: list[Tensor], skipped: list[str]
) -> AttentionPass:
    def joined(name: str) -> Tensor | None:
        some = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        return torch.cat(some) if some else None

    return AttentionPass(
        AttentionStats(*(joined(one.name) for one in fields(AttentionStats))),
        rows,
        torch.cat(images),
        skipped,
    )
