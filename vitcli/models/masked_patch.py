"""Masked patch prediction (paper, sections 4.6 and B.1.2): corrupted patches, and what is to be said of them.

A network sees its picture with half of the patch embeddings corrupted and says of these what was there: the
mean colour, the colours of the patch made smaller, or its pixels.

Where the paper is silent: the [mask] embedding starts normal with deviation 0.02; a patch is made smaller by
the mean over each area; the loss is a mean over all that is asked of a patch; one linear layer predicts.

B batch, N patches, M corrupted patches of a picture, S colours asked of a patch (1 or 16), K = 512 colours,
V = 3 h w values of a patch, T tokens, D hidden width, C channels, H x W pixels of a picture, h x w of its
patches.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from timm.models import checkpoint_seq
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import init

from vitcli.errors import VitError
from vitcli.models.init import lecun_normal_


class Counts(NamedTuple):
    """How many patches of a picture are corrupted, and how many of these masked and replaced."""

    corrupted: int
    masked: int
    replaced: int


class Corruption(NamedTuple):
    """Which patches are corrupted, and what stands there instead.

    Attributes:
        places_BM: (B, M) int64, places in the picture, in no order.
        sources_BM: (B, M) int64, whose embedding stands there: patch n of picture b is b * N + n.
        is_masked_BM: (B, M) bool, where it is the [mask] embedding; the source is then the patch itself.
    """

    places_BM: Tensor
    sources_BM: Tensor
    is_masked_BM: Tensor


def corruption_counts(num_patches: int, *, corrupted: float, masked: float, replaced: float) -> Counts:
    """Shares of all patches, and of the corrupted ones, to counts.

    The masked are rounded, and the masked and replaced together, so that never more come out than are
    corrupted: 98, 78 and 10 of 196 patches with the paper's shares 0.5, 0.8 and 0.1.

    Raises:
        VitError: the shares leave nothing to predict, or are impossible.
    """
    num_corrupted = _rounded(corrupted * num_patches)
    num_masked = _rounded(masked * num_corrupted)
    num_replaced = _rounded((masked + replaced) * num_corrupted) - num_masked
    are_shares = min(corrupted, masked, replaced) >= 0 and max(corrupted, masked + replaced) <= 1
    if not are_shares or not num_corrupted or (num_replaced and num_patches < 2):
        raise VitError(
            f"of {num_patches} patches a share of {corrupted:g}, and of these {masked:g} masked and "
            f"{replaced:g} replaced, is impossible or leaves nothing to predict",
            where="masked patch prediction",
            fix="shares from 0 to 1, and at least one corrupted patch; the paper's are 0.5, 0.8 and 0.1",
        )
    return Counts(num_corrupted, num_masked, num_replaced)


def draw(
    num_images: int, num_patches: int, counts: Counts, generator: torch.Generator | None = None
) -> Corruption:
    """A corruption with these counts in every picture, on the CPU, from torch's global generator if None.

    The other patch is the next in a random order of all patches of all pictures: never the patch itself, each
    of the others equally likely, and none twice.
    """
    places_BN = torch.rand(num_images, num_patches, generator=generator).argsort(dim=1)
    order_N = torch.randperm(num_images * num_patches, generator=generator)
    next_N = torch.empty_like(order_N).scatter_(0, order_N, order_N.roll(-1))
    places_BM = places_BN[:, : counts.corrupted]
    sources_BM = places_BM + num_patches * torch.arange(num_images)[:, None]
    replaced = slice(counts.masked, counts.masked + counts.replaced)
    sources_BM[:, replaced] = next_N[sources_BM[:, replaced]]
    is_masked_BM = (torch.arange(counts.corrupted) < counts.masked).expand(num_images, -1)
    return Corruption(places_BM, sources_BM, is_masked_BM)


def draw_alone(seeds: Iterable[int], num_patches: int, counts: Counts) -> Corruption:
    """A corruption of as many pictures as seeds, each as it would be drawn alone from its seed.

    Other patches are then of the same picture, and an evaluation does not depend on the batches.
    """
    drawn = [draw(0, num_patches, counts, torch.Generator())]  # a batch of bad pictures has no seeds
    for i, seed in enumerate(seeds):
        alone = draw(1, num_patches, counts, torch.Generator().manual_seed(seed))
        drawn.append(alone._replace(sources_BM=alone.sources_BM + i * num_patches))
    return Corruption(*(torch.cat(tensors) for tensors in zip(*drawn, strict=True)))


def corrupt(embeddings_BND: Tensor, corruption: Corruption, mask_token_11D: Tensor) -> Tensor:
    """The embeddings with the corrupted ones exchanged, in their precision."""
    places_BM, sources_BM, is_masked_BM = corruption
    seen_BMD = embeddings_BND.flatten(0, 1)[sources_BM]
    seen_BMD = torch.where(is_masked_BM[..., None], mask_token_11D.to(seen_BMD.dtype), seen_BMD)
    return embeddings_BND.scatter(1, places_BM[..., None].expand_as(seen_BMD), seen_BMD)


def _rounded(number: float) -> int:
    return math.floor(round(number, 6) + 0.5)  # 0.35 * 50 and its like may miss their half by a hair


TARGETS = ("mean_color", "downsized", "pixels")
CELLS = {"mean_color": 1, "downsized": 4}  # a side of the patch, of which each has a colour to predict
LEVELS = 8  # of a colour's red, green and blue: 3 bits
NUM_COLORS = LEVELS**3
MASK_STD = 0.02
GREY = 128  # of a masked patch in a picture


class Prediction(NamedTuple):
    """What the network says of the corrupted patches, and what was there.

    Attributes:
        outputs: (B, M, S, K) logits of colours, or (B, M, V) pixels in the model's range.
        targets: (B, M, S) int64 colours, or (B, M, V) float32.
        corruption: of the same patches, in the same order.
    """

    outputs: Tensor
    targets: Tensor
    corruption: Corruption

    def of_first(self, num_images: int) -> "Prediction":
        """That of the first images alone."""
        outputs, targets, corruption = self
        return Prediction(
            outputs[:num_images],
            targets[:num_images],
            Corruption(*(values[:num_images] for values in corruption)),
        )


class MaskedPatchModel(nn.Module):
    """A ViT that predicts its corrupted patches, in training and in evaluation mode.

    Its own parameters are `mask_token` (1, 1, D) and `prediction.*`; the network's are `vit.*`.

    Args:
        vit: a ViT or a hybrid, of which a patch is what one token stands for; its head is removed.
        target: one of TARGETS.
        corrupted: share of the patches.
        masked, replaced: shares of these that become [mask] and another patch. The others stay as they are,
            and are predicted all the same.
        mean, std: of the model's range, see `transforms.to_model_range`.

    Raises:
        VitError: the network has no patches that could be predicted, or the shares leave nothing to predict.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        target: str,
        corrupted: float,
        masked: float,
        replaced: float,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ):
        super().__init__()
        assert target in TARGETS, target
        _check_network(vit)
        vit.reset_classifier(0)
        self.vit, self.target, self.mean, self.std = vit, target, mean, std
        self.grid = vit.patch_embed.grid_size
        self.patch_hw = vit.patch_embed.feat_ratio(as_scalar=False)
        self.counts = corruption_counts(
            math.prod(self.grid), corrupted=corrupted, masked=masked, replaced=replaced
        )
        like = next(vit.parameters())
        self.mask_token = nn.Parameter(init.normal_(like.new_empty(1, 1, vit.embed_dim), std=MASK_STD))
        num_outputs = 3 * math.prod(self.patch_hw) if target == "pixels" else CELLS[target] ** 2 * NUM_COLORS
        self.prediction = nn.Linear(vit.embed_dim, num_outputs, device=like.device, dtype=like.dtype)
        lecun_normal_(self.prediction.weight.data)
        init.zeros_(self.prediction.bias)

    def forward(self, images_BCHW: Tensor, corruption: Corruption | None = None) -> Prediction:
        """What the network says of the corrupted patches, which are drawn with `draw` unless given.

        Args:
            images_BCHW: float32, 8-bit pixels in the model's range.
        """
        if corruption is None:
            corruption = self.draw(len(images_BCHW))
        corruption = Corruption(*(tensor.to(images_BCHW.device) for tensor in corruption))
        where_BM1 = corruption.places_BM[..., None]
        patches_BND = self.encode(images_BCHW, corruption)[:, self.vit.num_prefix_tokens :]
        outputs = self.prediction(patches_BND.take_along_dim(where_BM1, dim=1))
        if self.target != "pixels":
            outputs = outputs.unflatten(-1, (-1, NUM_COLORS))
        return Prediction(outputs, self.targets(images_BCHW).take_along_dim(where_BM1, dim=1), corruption)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Under the name of timm's networks."""
        self.vit.set_grad_checkpointing(enable)

    def encode(self, images_BCHW: Tensor, corruption: Corruption) -> Tensor:
        """(B, T, D) tokens after the last norm: timm's `forward_features` with the corruption in its middle.

        Embeddings are corrupted before position embeddings are added, and the class token never is.
        """
        vit = self.vit
        embeddings_BND = corrupt(vit.patch_embed(images_BCHW), corruption, self.mask_token)
        tokens_BTD = vit.norm_pre(vit.patch_drop(vit._pos_embed(embeddings_BND)))
        if vit.grad_checkpointing:
            tokens_BTD = checkpoint_seq(vit.blocks, tokens_BTD)
        else:
            tokens_BTD = vit.blocks(tokens_BTD)
        return vit.norm(tokens_BTD)

    @torch.compiler.disable  # torch.compile would draw other numbers
    def draw(self, num_images: int) -> Corruption:
        """A corruption from torch's global CPU generator, so that every device draws the same."""
        return draw(num_images, math.prod(self.grid), self.counts)

    def draw_alone(self, seeds: Iterable[int]) -> Corruption:
        """A corruption of as many pictures as seeds, for an evaluation; see `corruption.draw_alone`."""
        return draw_alone(seeds, math.prod(self.grid), self.counts)

    @torch.no_grad()
    def targets(self, images_BCHW: Tensor) -> Tensor:
        """Of every patch: (B, N, S) int64 colours, or (B, N, V) float32 pixels, row by row."""
        if self.target == "pixels":
            return _patches(images_BCHW.float(), self.grid).flatten(2)
        return patch_colors(_levels(images_BCHW, self.mean, self.std), self.grid, CELLS[self.target])

    @torch.no_grad()
    def views(
        self, images_BCHW: Tensor, prediction: Prediction
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of each picture: itself, what the network sees, and its predictions in the corrupted places.

        (H, W, 3) uint8 each. Masked patches are grey, replaced ones show the other patch. Predicted colours
        are the middles of their bins.
        """
        places_BM, sources_BM, is_masked_BM = prediction.corruption
        original_BNhwC = _patches(_levels(images_BCHW, self.mean, self.std), self.grid)
        seen_BMhwC = original_BNhwC.flatten(0, 1)[sources_BM]
        seen_BMhwC[is_masked_BM] = GREY
        where = (torch.arange(len(places_BM), device=places_BM.device)[:, None], places_BM)
        pictures = [original_BNhwC]
        for values_BMhwC in (seen_BMhwC, self._predicted_levels(prediction.outputs)):
            pictures.append(original_BNhwC.index_put(where, values_BMhwC))
        joined = (
            patches.unflatten(1, self.grid).transpose(2, 3).flatten(3, 4).flatten(1, 2)
            for patches in pictures
        )
        return list(zip(*(picture.to("cpu", torch.uint8).numpy() for picture in joined), strict=True))

    def _predicted_levels(self, outputs: Tensor) -> Tensor:
        """(B, M, h, w, C) int32, from 0 to 255."""
        if self.target == "pixels":
            values = outputs.float().unflatten(-1, (*self.patch_hw, 3))
            return _to_levels(values * values.new_tensor(self.std) + values.new_tensor(self.mean))
        cells = CELLS[self.target]
        colors = outputs.argmax(dim=-1).unflatten(-1, (cells, cells))
        bins = torch.stack([colors % LEVELS, colors // LEVELS % LEVELS, colors // LEVELS**2], dim=-1)
        cell_h, cell_w = (torch.arange(side, device=bins.device) * cells // side for side in self.patch_hw)
        return _to_levels((bins + 0.5) / LEVELS)[:, :, cell_h[:, None], cell_w]


def patch_colors(levels_BCHW: Tensor, grid: tuple[int, int], cells: int) -> Tensor:
    """(B, N, cells * cells) int64: red + 8 green + 64 blue of the mean over each cell of each patch.

    A mean v in [0, 1] is in bin min(floor(8 v), 7). Sums are of integers, so that a mean on the border of two
    bins falls to the same side on every device. Where cells do not divide the patch, a pixel counts for each
    by the area in it.
    """
    (rows, columns), num_pixels = grid, 1
    for dim, num_patches in ((2, rows), (3, columns)):
        finer = cells // math.gcd(levels_BCHW.shape[dim] // num_patches, cells)
        levels_BCHW = levels_BCHW.repeat_interleave(finer, dim)
        num_pixels *= levels_BCHW.shape[dim] // (num_patches * cells)
    sums = levels_BCHW.unflatten(3, (columns * cells, -1)).unflatten(2, (rows * cells, -1)).sum(dim=(3, 5))
    bins = (sums * LEVELS // (255 * num_pixels)).clamp(max=LEVELS - 1)
    colors = bins[:, 0] + LEVELS * bins[:, 1] + LEVELS**2 * bins[:, 2]
    return _patches(colors[:, None], grid).flatten(2)


def loss(prediction: Prediction) -> Tensor:
    """Mean over the corrupted patches: cross-entropy in nats, or squared error in the model's range."""
    return example_losses(prediction).mean()


def example_losses(prediction: Prediction) -> Tensor:
    """The same for each picture alone, (B,) float32; all have equally many corrupted patches."""
    outputs, targets, _ = prediction
    if targets.is_floating_point():
        return F.mse_loss(outputs.float(), targets, reduction="none").mean(dim=(1, 2))
    losses = F.cross_entropy(outputs.float().flatten(0, 2), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(dim=(1, 2))


def num_right(prediction: Prediction) -> Tensor:
    """How many of the M * S colours of each picture are predicted right, (B,) int64."""
    return (prediction.outputs.argmax(dim=-1) == prediction.targets).sum(dim=(1, 2))


def color_counts(prediction: Prediction) -> Tensor:
    """How often each colour was there, (K,) int64; the largest over the sum is what one guess gets."""
    return torch.bincount(prediction.targets.flatten(), minlength=NUM_COLORS)


def backbone_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The network's part of a MaskedPatchModel's state dict, or of the average of one, under timm's names."""
    return {name[4:]: tensor for name, tensor in state.items() if name.startswith("vit.")}


def _check_network(vit: nn.Module) -> None:
    """Refuse what has no token for each patch of one grid, or no norm over all of its tokens."""
    is_whole = (
        isinstance(vit, VisionTransformer)
        and not (vit.dynamic_img_size or vit.attn_pool or list(vit.fc_norm.parameters()))
        and isinstance(vit.patch_drop, nn.Identity)
    )
    if is_whole:
        stem = vit.patch_embed
        covered = tuple(
            n * side for n, side in zip(stem.grid_size, stem.feat_ratio(as_scalar=False), strict=True)
        )
        is_whole = covered == tuple(stem.img_size)
    if not is_whole:
        raise VitError(
            f"no patches can be predicted with a {type(vit).__name__} such as this",
            where="--model (recipe key model.name)",
            fix="take a ViT or a hybrid of the paper (vit models)",
        )


def _patches(values_BCHW: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, h, w, C), patches row by row."""
    split = values_BCHW.unflatten(3, (grid[1], -1)).unflatten(2, (grid[0], -1))
    return split.permute(0, 2, 4, 3, 5, 1).flatten(1, 2)


def _levels(images_BCHW: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The 8-bit pixels that images in the model's range were made from, int32."""
    mean_C11, std_C11 = (images_BCHW.new_tensor(values).view(-1, 1, 1) for values in (mean, std))
    return _to_levels(images_BCHW * std_C11 + mean_C11)


def _to_levels(values: Tensor) -> Tensor:
    return (values * 255).round().clamp(0, 255).to(torch.int32)
