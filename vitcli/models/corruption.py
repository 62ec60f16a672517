"""Corrupted patch embeddings (paper, section B.1.2): [mask], another patch, or as it was.

Where the paper is silent: its shares hold in each picture exactly, halves rounded up, and "another patch" is
any other of the same forward pass, none of them twice.

B batch, N patches, M corrupted patches of a picture, D hidden width.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vitcli.errors import VitError


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
