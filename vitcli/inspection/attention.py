"""Attention weights of a network: where they are, how they are recorded, and their statistics over a split.

    probe_attention_layout   grid, layers and heads of a network, or the reason why it has no attention maps
    record_attention         hooks that pass on the weights of each layer; none are kept
    attention_stats          one forward pass: attention distance, rollout, maps by head, features
    collect_attention        these for all images of a split
    patch_relevance          the patches that carry one score

B images, M of them shown, A heads, L layers, S prefix tokens, N = H*W patches, T = S + N tokens, D hidden
width.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.inspection import analysis
from vitcli.inspection.analysis import attention_distance, patch_distances, rollout_layer
from vitcli.models.architecture import Architecture
from vitcli.models.features import has_normed_token, tokens_of

CLASS_TOKEN, PATCHES = "class token", "mean of the patches"
MOST_WEIGHTS = 2**25  # attention weights of a batch in one layer: 128 MiB in fp32, and a few copies of it


@dataclass(frozen=True)
class AttentionLayout:
    """Layout of a network's attention over the patches of an image.

    Attributes:
        num_prefix: tokens before the patches; `has_class_token` if one of them is the class token.
        grid: (H, W) in patches.
        patch_size: pixels from one patch to the next, for a hybrid its whole stride.
        read_from: the tokens that the output is read from, in words.
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
        """Return True if the output is read from the class token, False if from the patches."""
        return self.read_from == CLASS_TOKEN

    def output_attention(self, attention_XTT: Tensor) -> Tensor:
        """Return the output's attention to each patch (..., N), see `analysis.output_attention`."""
        return analysis.output_attention(
            attention_XTT, num_prefix=self.num_prefix, reads_token=self.reads_token
        )

    @property
    def weights_per_image(self) -> int:
        """Return the number of attention weights of one image in one layer: A * T * T."""
        num_tokens = self.num_prefix + self.grid[0] * self.grid[1]
        return self.num_heads * num_tokens**2


def probe_attention_layout(model: nn.Module, arch: Architecture) -> AttentionLayout | str:
    """Find the attention layout by a forward pass of one blank image.

    Returns:
        The layout; or, in words, why there are no attention maps: attention within windows, over channels or
        over tokens that are merged on the way has no single grid.
    """
    # A forward pass shows the weights' shape in each layer.
    if not attention_layers(model):
        return f"{arch.name} has no blocks of one self-attention each over patches"
    shapes: dict[int, tuple[int, ...]] = {}
    image_1CHW = torch.zeros(1, 3, *arch.image_size, device=next(model.parameters()).device)

    def record(layer: int, weights_BATT: Tensor) -> None:
        shapes[layer] = weights_BATT.shape

    with torch.no_grad(), record_attention(model, record):
        model.forward_features(image_1CHW)

    # All layers must attend over the same tokens: the prefix and one for each patch of the grid.
    grid, num_prefix = patch_grid(model), getattr(model, "num_prefix_tokens", 0)
    distinct_shapes = set(shapes.values())
    if grid is None or len(distinct_shapes) != 1:
        return f"the blocks of {arch.name} do not all attend over the same patches"
    _, num_heads, *tokens = distinct_shapes.pop()
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
    has_own_pooling = getattr(model, "global_pool", "avg") != "avg"  # by attention, or the maximum
    return f"{PATCHES}, in place of its own pooling" if has_own_pooling else PATCHES


def patch_grid(model: nn.Module) -> tuple[int, int] | None:
    """Return rows and columns of patches at the network's image size, or None without patches."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    return tuple(grid) if grid else None


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """Return the attention module of each block, or [] if a block does not have exactly one."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        return []
    layers_of_blocks = [
        [part for part in block.modules() if isinstance(getattr(part, "attn_drop", None), nn.Module)]
        for block in blocks
    ]
    return [layers[0] for layers in layers_of_blocks] if all(len(n) == 1 for n in layers_of_blocks) else []


@contextmanager
def record_attention(model: nn.Module, record: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call `record` with each layer's number, from 0, and its attention weights (B, A, T, T).

    Fused attention never computes these weights, so it is off for these layers within the context.
    """

    def hook_of(number: int) -> Callable[..., None]:
        return lambda module, inputs, output: record(number, inputs[0])

    with ExitStack() as undone:
        for number, layer in enumerate(attention_layers(model)):
            undone.enter_context(layer.attn_drop.register_forward_hook(hook_of(number)))
            if hasattr(layer, "fused_attn"):
                undone.callback(setattr, layer, "fused_attn", layer.fused_attn)
                layer.fused_attn = False
        yield


@dataclass(frozen=True)
class AttentionStats:
    """Statistics of n images, of which the first M are shown; None for what a network does not have.

    Attributes:
        distance_nLA: pixels, see `analysis.attention_distance`; float64.
        rollout_MN: attention of the output to each patch through all layers, see `analysis.rollout_layer`.
        heads_MLAN: attention of the output's token to each patch in each layer, by head.
        features_MHWD: features by place after the last layer.
        logits_MK: of the head.
    """

    distance_nLA: Tensor | None = None
    rollout_MN: Tensor | None = None
    heads_MLAN: Tensor | None = None
    features_MHWD: Tensor | None = None
    logits_MK: Tensor | None = None


def attention_stats(
    model: nn.Module,
    layout: AttentionLayout,
    images_BCHW: Tensor,
    distances_NN: Tensor,
    num_shown: int,
    *,
    residual: bool,
    renormalise: bool,
) -> AttentionStats:
    """Return the statistics of one forward pass, on the CPU.

    Args:
        distances_NN: float32, see `analysis.patch_distances`.
    """
    # Each layer's weights are reduced at once, and never kept.
    distances, heads, rollout_MTT = [], [], None

    def record(_: int, weights_BATT: Tensor) -> None:
        nonlocal rollout_MTT
        weights_BATT = weights_BATT.float()
        with torch.autocast(weights_BATT.device.type, enabled=False):  # sums of weights stay in fp32
            distance_BA = attention_distance(
                weights_BATT, distances_NN, num_prefix=layout.num_prefix, renormalise=renormalise
            )
            distances.append(distance_BA)
            if num_shown:
                weights_MATT = weights_BATT[:num_shown]
                heads.append(layout.output_attention(weights_MATT).cpu())
                rollout_MTT = rollout_layer(rollout_MTT, weights_MATT, residual=residual)

    with record_attention(model, record):
        encoded = model.forward_features(images_BCHW)

    # Rollout, maps by head and features are of the shown images alone.
    distance_BLA = torch.stack(distances, dim=1).cpu().double()
    if not num_shown:
        return AttentionStats(distance_BLA)
    rollout_MN = layout.output_attention(rollout_MTT).cpu()
    features_MHWD = feature_map(model, encoded[:num_shown])
    has_head = getattr(model, "num_classes", 0) and hasattr(model, "forward_head")
    logits_MK = model.forward_head(encoded[:num_shown]).float().cpu() if has_head else None
    heads_MLAN = torch.stack(heads, dim=1)
    return AttentionStats(distance_BLA, rollout_MN, heads_MLAN, features_MHWD, logits_MK)


def patch_relevance(
    model: nn.Module, layout: AttentionLayout, images_BCHW: Tensor, score: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return how much each patch carries the score of its image, (B, I, J) float64 on the CPU, from 0.

    Attention times its gradient, through all layers (arXiv 2103.15679):

        R_0 = I
        R_l = R_{l-1} + mean over heads of max(0, A_l * d score / d A_l)  R_{l-1}

    A patch counts as the output's token, or the mean of the patches, reads it in R_L. Unlike attention
    rollout (`analysis.rollout_layer`) it is about one score: attention that does not raise it counts nothing.

    Args:
        score: of the output of `model` (B, ...), (B,); differentiable.
    """
    attentions: list[Tensor] = []
    images_BCHW = images_BCHW.detach().clone().requires_grad_()  # the weights need no gradient
    with (
        torch.enable_grad(),
        record_attention(model, lambda _, weights_BATT: attentions.append(weights_BATT)),
    ):
        total = score(model(images_BCHW)).sum()
        gradients = torch.autograd.grad(total, attentions)

    relevance_BTT = torch.eye(attentions[0].shape[-1], dtype=torch.float64).expand(len(images_BCHW), -1, -1)
    for weights_BATT, gradient_BATT in zip(attentions, gradients, strict=True):
        raised_BTT = (weights_BATT.detach() * gradient_BATT).clamp_min(0).mean(dim=1).cpu().double()
        relevance_BTT = relevance_BTT + raised_BTT @ relevance_BTT
    return layout.output_attention(relevance_BTT).unflatten(1, layout.grid)


def feature_map(model: nn.Module, encoded: Any) -> Tensor | None:
    """Return features by place (B, H, W, D), float32 on the CPU, from the output of `forward_features`.

    None if that is not a grid.
    """
    if not isinstance(encoded, Tensor):
        return None
    grid, encoded = patch_grid(model), encoded.float().cpu()
    # Tokens of a transformer, the prefix first.
    if encoded.ndim == 3 and grid is not None:
        patches_BND = tokens_of(model, encoded)[:, getattr(model, "num_prefix_tokens", 0) :]
        return patches_BND.unflatten(1, grid) if patches_BND.shape[1] == grid[0] * grid[1] else None
    # A feature map, channels first or last.
    if encoded.ndim == 4:
        channels = getattr(model, "num_features", None)
        if encoded.shape[1] == channels:
            return encoded.permute(0, 2, 3, 1)
        return encoded if encoded.shape[3] == channels else None
    return None


@dataclass(frozen=True)
class AttentionPass:
    """Statistics of the images of a split.

    Attributes:
        rows_n: rows of the split, in order; the first M are shown.
        labels_n: label of each row, or all of its labels, padded with -1.
        images_MHWC: the shown images as the network's input, uint8.
        skipped: places of images that could not be decoded.
    """

    stats: AttentionStats
    rows_n: list[int]
    labels_n: list[int] | list[list[int]]
    images_MHWC: Tensor
    skipped: list[str]


def collect_attention(
    model: nn.Module,
    layout: AttentionLayout | None,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    num_shown: int,
    residual: bool,
    renormalise: bool,
) -> AttentionPass:
    """Collect the attention distance of every image of the split, and everything of the first `num_shown`.

    Args:
        layout: None for a network without attention over patches, of which only features are collected.
            There is nothing to average over images then, so those that are shown suffice.
        residual: see `analysis.rollout_layer`.
        renormalise: see `analysis.attention_distance`.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error", or none can be decoded.
        WeightsError: an attention weight or a feature is not finite.
    """
    device, precision = settings.device, settings.precision
    if layout is None:
        split = split.part(0, min(num_shown, len(split)), name=split.name)
    distances_NN = layout and patch_distances(layout.grid, layout.patch_size).float().to(device)
    parts, images, rows, labels, skipped = [], [], [], [], []

    def network(_: Tensor, images_BCHW: Tensor) -> AttentionStats:
        still_shown = max(0, num_shown - len(rows))
        if layout is None:
            encoded = model.forward_features(images_BCHW[:still_shown])
            return AttentionStats(features_MHWD=feature_map(model, encoded))
        return attention_stats(
            model, layout, images_BCHW, distances_NN, still_shown, residual=residual, renormalise=renormalise
        )

    # Batches are small enough that the weights of one layer fit into memory.
    batch_size, multiple = _batch_size(layout, settings.batch_size)
    batches = replace(settings, batch_size=batch_size).batches(split, preprocessing, all_rows=True)
    outputs = inference.forward_batches(
        model, network, batches, preprocessing, device, precision, multiple=multiple
    )
    for batch, padded in inference.report_progress(outputs, settings, "inspect", len(split), all_rows=True):
        skipped += batch.skipped
        if not len(batch.rows_B):
            continue
        # Without the blank images that fill up a batch.
        stats = {name: x[: len(batch.rows_B)] for name, x in vars(padded).items() if x is not None}
        for values in stats.values():
            inference.check_finite(values, batch, so="nothing can be shown", precision=precision)
        parts.append(stats)
        images.append(batch.images_BCHW[: max(0, num_shown - len(rows))].permute(0, 2, 3, 1))
        rows += batch.rows_B.tolist()
        labels += batch.labels_B.tolist()
    if not rows:
        raise inference.nothing_decoded(split)

    # The first batch has all statistics that the network has, later ones may have the distances alone.
    joined = {name: torch.cat([part[name] for part in parts if name in part]) for name in parts[0]}
    return AttentionPass(AttentionStats(**joined), rows, labels, torch.cat(images), skipped)


def _batch_size(layout: AttentionLayout | None, batch_size: int) -> tuple[int, int]:
    """Return images per forward pass, and the multiple they are padded to, within MOST_WEIGHTS."""
    most = MOST_WEIGHTS // layout.weights_per_image if layout else batch_size
    return (1, 1) if most < inference.MULTIPLE else (min(batch_size, most), inference.MULTIPLE)
