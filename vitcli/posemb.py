"""Resampling of learned position embeddings to another patch grid (paper, section 3.2).

T tokens, N = H*W patches, D hidden width, H x W the patch grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.errors import VitError


def resample_posemb(
    posemb_1TD: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int], *, num_prefix: int = 1
) -> Tensor:
    """Carry a learned position embedding over to another patch grid.

    A larger image at the same patch size has more patches than the embedding has rows, so the
    rows are interpolated in 2-D, each at the place its patch has in the image. The class token
    has no place in the image and is passed on as it is.
    Source: paper, section 3.2. It names no kernel; bilinear with aligned corners is the zoom of
    the authors' code (equal to 1e-14 in float64).

    Args:
        posemb_1TD: (1, num_prefix + H*W, D), class token first, any float dtype.
        old_grid: (H, W) in patches, not pixels. Never guessed from T: 16 rows may be 4x4 or 2x8.
        new_grid: (H', W') in patches.
        num_prefix: tokens without a place: the class token, and registers where a network has them.

    Returns:
        (1, num_prefix + H'*W', D), same dtype and device; computed in float32.

    Raises:
        VitError: T is not num_prefix + H*W.
    """
    height, width = old_grid
    if num_prefix < 0 or posemb_1TD.shape[1] != num_prefix + height * width:
        raise VitError(
            f"a position embedding of {posemb_1TD.shape[1]} rows does not cover a grid of {height}x{width}",
            where="position embedding",
            fix="say which image size these weights were trained at",
        )
    prefix_1PD, grid_1ND = posemb_1TD[:, :num_prefix], posemb_1TD[:, num_prefix:]
    grid_1DHW = grid_1ND.unflatten(1, old_grid).permute(0, 3, 1, 2)
    resampled_1DHW = F.interpolate(grid_1DHW.float(), size=new_grid, mode="bilinear", align_corners=True)
    resampled_1ND = resampled_1DHW.flatten(2).transpose(1, 2).to(posemb_1TD.dtype)
    return torch.cat([prefix_1PD, resampled_1ND], dim=1)
