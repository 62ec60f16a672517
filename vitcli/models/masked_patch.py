"""Masked patch prediction (paper, sections 4.6 and B.1.2): corrupted patches, the model, its loss.

Half of the patch embeddings are corrupted: of these 80 % become a learned [mask] embedding, 10 % that of
another patch, and 10 % stay as they are. From its output at these places the network predicts what was there:
the mean colour of the patch, a downsized version of it as colours, or its pixels.

    corruption_counts   fractions to numbers of patches
    draw, draw_alone    random corruptions of a batch
    MaskedPatchModel    corrupts, encodes and predicts
    loss, example_losses, num_right, color_counts   scores of a Prediction

Where the paper is silent: the [mask] embedding starts normal with deviation 0.02; a patch is downsized by the
mean over each area; the loss is a mean over everything predicted of a patch; one linear layer predicts.

B batch, N patches, M corrupted patches of an image, S colours predicted of a patch (1 or 16), K = 512
colours, V = 3 h w values of a patch, T tokens, D hidden width, C channels, H x W pixels of an image, h x w of
a patch.
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

from vitcli.distributed.startup import not_compiled
from vitcli.distributed.transfer import constant, to_device
from vitcli.errors import VitError
from vitcli.models.init import lecun_normal_

TARGETS = ("mean_color", "downsized", "pixels")
CELLS = {"mean_color": 1, "downsized": 4}  # areas along each side of a patch, each with a colour to predict
LEVELS = 8  # of a colour's red, green and blue: 3 bits
NUM_COLORS = LEVELS**3
MASK_STD = 0.02
GREY = 128  # masked patches in a figure


class Counts(NamedTuple):
    """Number of corrupted patches of an image, and of those masked and replaced among them."""

    corrupted: int
    masked: int
    replaced: int


class Corruption(NamedTuple):
    """Corrupted patches of a batch, and what replaces each of them.

    Attributes:
        places_BM: (B, M) int64, indices of the corrupted patches, unordered.
        sources_BM: (B, M) int64, the patch whose embedding is taken: patch n of image b is b * N + n.
        is_masked_BM: (B, M) bool, where the [mask] embedding is taken; the source is then the patch itself.
    """

    places_BM: Tensor
    sources_BM: Tensor
    is_masked_BM: Tensor


def corruption_counts(num_patches: int, *, corrupted: float, masked: float, replaced: float) -> Counts:
    """Turn fractions of all patches (corrupted) and of the corrupted ones (masked, replaced) into counts.

    The masked are rounded, then the masked and replaced together, so that their sum is at most the corrupted:
    98, 78 and 10 of 196 patches with the paper's fractions 0.5, 0.8 and 0.1.

    Raises:
        VitError: a fraction is not in [0, 1], or nothing is left to predict.
    """
    num_corrupted = _rounded(corrupted * num_patches)
    num_masked = _rounded(masked * num_corrupted)
    num_replaced = _rounded((masked + replaced) * num_corrupted) - num_masked
    are_fractions = min(corrupted, masked, replaced) >= 0 and max(corrupted, masked + replaced) <= 1
    if not are_fractions or not num_corrupted or (num_replaced and num_patches < 2):
        raise VitError(
            f"of {num_patches} patches a fraction of {corrupted:g} corrupted, and of these {masked:g} masked "
            f"and {replaced:g} replaced, is impossible or leaves nothing to predict",
            where="masked patch prediction",
            fix="fractions from 0 to 1, and at least one corrupted patch; the paper's are 0.5, 0.8 and 0.1",
        )
    return Counts(num_corrupted, num_masked, num_replaced)


def draw(
    num_images: int, num_patches: int, counts: Counts, generator: torch.Generator | None = None
) -> Corruption:
    """Draw a corruption with these counts in every image, on the CPU, from torch's global generator if None.

    A replaced patch gets the next one in a random order of all patches of the batch: never itself, each of
    the others equally likely, and none twice.
    """
    # The first M patches of a random order of each image are corrupted.
    places_BN = torch.rand(num_images, num_patches, generator=generator).argsort(dim=1)
    order_N = torch.randperm(num_images * num_patches, generator=generator)
    next_N = torch.empty_like(order_N).scatter_(0, order_N, order_N.roll(-1))
    places_BM = places_BN[:, : counts.corrupted]
    sources_BM = places_BM + num_patches * torch.arange(num_images)[:, None]
    # Of these the first are masked, the next ones replaced, and the others keep their embedding.
    replaced = slice(counts.masked, counts.masked + counts.replaced)
    sources_BM[:, replaced] = next_N[sources_BM[:, replaced]]
    is_masked_BM = (torch.arange(counts.corrupted) < counts.masked).expand(num_images, -1)
    return Corruption(places_BM, sources_BM, is_masked_BM)


def draw_alone(seeds: Iterable[int], num_patches: int, counts: Counts) -> Corruption:
    """Draw a corruption of one image from each seed, so that an evaluation does not depend on the batches.

    Replaced patches then get another patch of the same image.
    """
    corruptions = [draw(0, num_patches, counts, torch.Generator())]  # a batch may have no decodable image
    for i, seed in enumerate(seeds):
        alone = draw(1, num_patches, counts, torch.Generator().manual_seed(seed))
        corruptions.append(alone._replace(sources_BM=alone.sources_BM + i * num_patches))
    return Corruption(*(torch.cat(tensors) for tensors in zip(*corruptions, strict=True)))


def corrupt(embeddings_BND: Tensor, corruption: Corruption, mask_token_11D: Tensor) -> Tensor:
    """Replace the embeddings of corrupted patches, in the precision of the embeddings."""
    places_BM, sources_BM, is_masked_BM = corruption
    new_BMD = embeddings_BND.flatten(0, 1)[sources_BM]
    new_BMD = torch.where(is_masked_BM[..., None], mask_token_11D.to(new_BMD.dtype), new_BMD)
    return embeddings_BND.scatter(1, places_BM[..., None].expand_as(new_BMD), new_BMD)


def _rounded(number: float) -> int:
    return math.floor(round(number, 6) + 0.5)  # rounding errors: 0.29 * 50 is 14.499999999999998


class Prediction(NamedTuple):
    """Predictions of the corrupted patches, and their targets.

    Attributes:
        outputs: (B, M, S, K) logits of colours, or (B, M, V) pixels in the model's range.
        targets: (B, M, S) int64 colours, or (B, M, V) float32.
        corruption: the same patches, in the same order.
    """

    outputs: Tensor
    targets: Tensor
    corruption: Corruption

    def of_first(self, num_images: int) -> "Prediction":
        """Return the predictions of the first images."""
        outputs, targets, corruption = self
        corruption = Corruption(*(values[:num_images] for values in corruption))
        return Prediction(outputs[:num_images], targets[:num_images], corruption)


class MaskedPatchModel(nn.Module):
    """ViT that predicts corrupted patches, in training and in evaluation mode.

    Its own parameters are `mask_token` (1, 1, D) and `prediction.*`; the network's are `vit.*`.

    Args:
        vit: a ViT or a hybrid, where a patch is what one token covers; its head is removed.
        target: one of TARGETS.
        corrupted: fraction of the patches.
        masked, replaced: fractions of these that become [mask] and another patch. The others stay as they
            are, and are predicted nonetheless.
        mean, std: of the model's range, see `transforms.to_model_range`.

    Raises:
        VitError: the network's patches cannot be predicted, or the fractions leave nothing to predict.
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
        # The network, without its head.
        _check_network(vit)
        vit.reset_classifier(0)
        self.vit, self.target, self.mean, self.std = vit, target, mean, std
        self.grid = vit.patch_embed.grid_size
        self.patch_hw = vit.patch_embed.feat_ratio(as_scalar=False)
        self.counts = corruption_counts(
            math.prod(self.grid), corrupted=corrupted, masked=masked, replaced=replaced
        )
        # Our parameters: the [mask] embedding, and one layer that predicts.
        like = next(vit.parameters())
        self.mask_token = nn.Parameter(init.normal_(like.new_empty(1, 1, vit.embed_dim), std=MASK_STD))
        num_outputs = 3 * math.prod(self.patch_hw) if target == "pixels" else CELLS[target] ** 2 * NUM_COLORS
        self.prediction = nn.Linear(vit.embed_dim, num_outputs, device=like.device, dtype=like.dtype)
        lecun_normal_(self.prediction.weight.data)
        init.zeros_(self.prediction.bias)

    def forward(self, images_BCHW: Tensor, corruption: Corruption | None = None) -> Prediction:
        """Predict the corrupted patches, which are drawn with `draw` unless given.

        Args:
            images_BCHW: float32, 8-bit pixels in the model's range.
        """
        corruption = self.on_device(corruption, images_BCHW)
        where_BM1 = corruption.places_BM[..., None]
        patches_BND = self.encode(images_BCHW, corruption)[:, self.vit.num_prefix_tokens :]
        outputs = self.prediction(patches_BND.take_along_dim(where_BM1, dim=1))
        if self.target != "pixels":
            outputs = outputs.unflatten(-1, (-1, NUM_COLORS))
        return Prediction(outputs, self.targets(images_BCHW).take_along_dim(where_BM1, dim=1), corruption)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.vit.set_grad_checkpointing(enable)

    def encode(self, images_BCHW: Tensor, corruption: Corruption) -> Tensor:
        """Return (B, T, D) tokens after the last norm, as timm's `forward_features` with corrupted patches.

        Patches are corrupted before position embeddings are added, and the class token never is.
        """
        vit = self.vit
        embeddings_BND = corrupt(vit.patch_embed(images_BCHW), corruption, self.mask_token)
        # From here on the lines of timm's VisionTransformer.forward_features.
        tokens_BTD = vit.norm_pre(vit.patch_drop(vit._pos_embed(embeddings_BND)))
        if vit.grad_checkpointing:
            tokens_BTD = checkpoint_seq(vit.blocks, tokens_BTD)
        else:
            tokens_BTD = vit.blocks(tokens_BTD)
        return vit.norm(tokens_BTD)

    @not_compiled  # torch.compile would draw other numbers
    def on_device(self, corruption: Corruption | None, images_BCHW: Tensor) -> Corruption:
        """Return a corruption, drawn unless given, on the device of the images."""
        corruption = corruption or self.draw(len(images_BCHW))
        return Corruption(*(to_device(tensor.contiguous(), images_BCHW.device) for tensor in corruption))

    @not_compiled
    def draw(self, num_images: int) -> Corruption:
        """Draw a corruption from torch's global CPU generator, so that every device draws the same."""
        return draw(num_images, math.prod(self.grid), self.counts)

    def draw_alone(self, seeds: Iterable[int]) -> Corruption:
        """Draw a corruption of one image from each seed, for an evaluation; see the function of this name."""
        return draw_alone(seeds, math.prod(self.grid), self.counts)

    @torch.no_grad()
    def targets(self, images_BCHW: Tensor) -> Tensor:
        """Return the targets of all patches: (B, N, S) int64 colours or (B, N, V) float32 pixels."""
        if self.target == "pixels":
            return _patches(images_BCHW.float(), self.grid).flatten(2)
        return patch_colors(_levels(images_BCHW, self.mean, self.std), self.grid, CELLS[self.target])

    @torch.no_grad()
    def views(
        self, images_BCHW: Tensor, prediction: Prediction
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return of each image (original, input, prediction), (H, W, 3) uint8 each, for a figure.

        In the input masked patches are grey and replaced ones show the other patch. The prediction shows the
        predicted patches in their places, colours as the middles of their bins.
        """
        places_BM, sources_BM, is_masked_BM = prediction.corruption
        # The patches of the input and of the prediction are put into the places of the corrupted ones.
        original_BNhwC = _patches(_levels(images_BCHW, self.mean, self.std), self.grid)
        corrupted_BMhwC = original_BNhwC.flatten(0, 1)[sources_BM]
        corrupted_BMhwC[is_masked_BM] = GREY
        where = (torch.arange(len(places_BM), device=places_BM.device)[:, None], places_BM)
        replaced = (corrupted_BMhwC, self._predicted_levels(prediction.outputs))
        versions = (original_BNhwC, *(original_BNhwC.index_put(where, patches) for patches in replaced))
        # Patches are joined to images.
        images = (
            patches_BNhwC.unflatten(1, self.grid).transpose(2, 3).flatten(3, 4).flatten(1, 2)
            for patches_BNhwC in versions
        )
        return list(zip(*(image.to("cpu", torch.uint8).numpy() for image in images), strict=True))

    def _predicted_levels(self, outputs: Tensor) -> Tensor:
        """Return the predicted patches (B, M, h, w, C), int32 from 0 to 255."""
        if self.target == "pixels":
            values = outputs.float().unflatten(-1, (*self.patch_hw, 3))
            return _to_levels(values * values.new_tensor(self.std) + values.new_tensor(self.mean))
        cells = CELLS[self.target]
        colors = outputs.argmax(dim=-1).unflatten(-1, (cells, cells))
        bins = torch.stack([colors % LEVELS, colors // LEVELS % LEVELS, colors // LEVELS**2], dim=-1)
        # A pixel at row r of h is in cell r * cells // h.
        cell_h, cell_w = (torch.arange(side, device=bins.device) * cells // side for side in self.patch_hw)
        return _to_levels((bins + 0.5) / LEVELS)[:, :, cell_h[:, None], cell_w]


def patch_colors(levels_BCHW: Tensor, grid: tuple[int, int], cells: int) -> Tensor:
    """Return the colour classes (B, N, cells * cells), int64, of the mean over each cell of each patch.

        bin(v) = min(floor(8 v), 7)                     v mean of a channel, in [0, 1]
        class  = bin(red) + 8 bin(green) + 64 bin(blue)

    That is the "3-bit, mean color (i.e., 512 colors in total)" of the paper, section B.1.2. Means are sums of
    integers, so that a mean on the border of two bins falls to the same side on every device. Where cells do
    not divide the patch, a pixel counts for each cell by the area in it.
    """
    (rows, columns), num_pixels = grid, 1
    # Pixels are repeated until cells divide the patch.
    for dim, num_patches in ((2, rows), (3, columns)):
        finer = cells // math.gcd(levels_BCHW.shape[dim] // num_patches, cells)
        levels_BCHW = levels_BCHW.repeat_interleave(finer, dim)
        num_pixels *= levels_BCHW.shape[dim] // (num_patches * cells)
    sums = levels_BCHW.unflatten(3, (columns * cells, -1)).unflatten(2, (rows * cells, -1)).sum(dim=(3, 5))
    bins = (sums * LEVELS // (255 * num_pixels)).clamp(max=LEVELS - 1)
    colors = bins[:, 0] + LEVELS * bins[:, 1] + LEVELS**2 * bins[:, 2]
    return _patches(colors[:, None], grid).flatten(2)


def loss(prediction: Prediction) -> Tensor:
    """Return the mean cross-entropy in nats, or squared error in the model's range, of corrupted patches."""
    return example_losses(prediction).mean()


def example_losses(prediction: Prediction) -> Tensor:
    """Return the loss of each image, (B,) float32; all have equally many corrupted patches."""
    outputs, targets, _ = prediction
    if targets.is_floating_point():
        return F.mse_loss(outputs.float(), targets, reduction="none").mean(dim=(1, 2))
    losses = F.cross_entropy(outputs.float().flatten(0, 2), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(dim=(1, 2))


def num_right(prediction: Prediction) -> Tensor:
    """Return the number of correctly predicted colours, of M * S, of each image, (B,) int64."""
    return (prediction.outputs.argmax(dim=-1) == prediction.targets).sum(dim=(1, 2))


def color_counts(prediction: Prediction) -> Tensor:
    """Count the targets of each colour, (K,) int64; the largest fraction is the majority class's accuracy."""
    return torch.bincount(prediction.targets.flatten(), minlength=NUM_COLORS)


def backbone_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's part of a MaskedPatchModel's state dict, or of its average, in timm's names."""
    return {name[4:]: tensor for name, tensor in state.items() if name.startswith("vit.")}


def _check_network(vit: nn.Module) -> None:
    """Refuse a network without a token for each patch of one grid, or a norm over all of its tokens."""
    is_whole = False
    if isinstance(vit, VisionTransformer):
        pools_otherwise = vit.dynamic_img_size or vit.attn_pool or list(vit.fc_norm.parameters())
        num_and_side = zip(
            vit.patch_embed.grid_size, vit.patch_embed.feat_ratio(as_scalar=False), strict=True
        )
        covered = tuple(num * side for num, side in num_and_side)
        keeps_all = isinstance(vit.patch_drop, nn.Identity) and covered == tuple(vit.patch_embed.img_size)
        is_whole = keeps_all and not pools_otherwise
    if not is_whole:
        raise VitError(
            f"masked patch prediction is not possible with this {type(vit).__name__}",
            where="--model (recipe key model.name)",
            fix="take a ViT or a hybrid of the paper (vit models)",
        )


def _patches(values_BCHW: Tensor, grid: tuple[int, int]) -> Tensor:
    """Split images into patches (B, N, h, w, C), row by row."""
    split = values_BCHW.unflatten(3, (grid[1], -1)).unflatten(2, (grid[0], -1))
    return split.permute(0, 2, 4, 3, 5, 1).flatten(1, 2)


def _levels(images_BCHW: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return the 8-bit pixels, int32, of images in the model's range."""
    mean_C, std_C = (constant(tuple(values), images_BCHW.device) for values in (mean, std))
    return _to_levels(images_BCHW * std_C.view(-1, 1, 1) + mean_C.view(-1, 1, 1))


def _to_levels(values: Tensor) -> Tensor:
    return (values * 255).round().clamp(0, 255).to(torch.int32)
