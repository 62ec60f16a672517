"""Resampling of learned position embeddings to another patch grid (paper, section 3.2).

T tokens, N = H*W patches, D hidden width, H x W the patch grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.errors import VitError


def resample_posemb(posemb_1TD: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int]) -> Tensor:
    """Carry a learned position embedding over to another patch grid.

    A larger image at the same patch size has more patches than the embedding has rows, so the
    rows are interpolated in 2-D, each at the place its patch has in the image. The class token
    has no place in the image and is passed on as it is.
    Source: paper, section 3.2. It names no kernel; bilinear with aligned corners is the zoom of
    the authors' code (equal to 1e-14 in float64).

    Args:
        posemb_1TD: (1, 1 + H*W, D), class token first, any float dtype.
        old_grid: (H, W) in patches, not pixels. Never guessed from T: 16 rows may be 4x4 or 2x8.
        new_grid: (H', W') in patches.

    Returns:
        (1, 1 + H'*W', D), same dtype and device; computed in float32.

    Raises:
        VitError: T is not 1 + H*W.
    """
    check_grid(posemb_1TD[:, 1:], old_grid)
    cls_11D, grid_1ND = posemb_1TD[:, :1], posemb_1TD[:, 1:]
    return torch.cat([cls_11D, resample_grid(grid_1ND, old_grid, new_grid)], dim=1)


def resample_grid(grid_1ND: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int]) -> Tensor:
    """The same for an embedding without a class token: (1, H*W, D) to (1, H'*W', D)."""
    check_grid(grid_1ND, old_grid)
    grid_1DHW = grid_1ND.unflatten(1, old_grid).permute(0, 3, 1, 2)
    resampled_1DHW = F.interpolate(grid_1DHW.float(), size=new_grid, mode="bilinear", align_corners=True)
    return resampled_1DHW.flatten(2).transpose(1, 2).to(grid_1ND.dtype)


def check_grid(grid_1ND: Tensor, grid: tuple[int, int]) -> None:
    """Refuse an embedding that does not have one row for each patch of `grid`."""
    height, width = grid
    if grid_1ND.shape[1] != height * width:
        raise VitError(
            f"a position embedding of {grid_1ND.shape[1]} patches does not cover a grid of {height}x{width}",
            where="position embedding",
            fix="say which image size these weights were trained at",
        )
