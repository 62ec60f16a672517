"""Resampling of learned position embeddings to another patch grid (paper, section 3.2), and of patch kernels.

T tokens, N = H*W patches, D hidden width, H x W the patch grid, C channels, P patch size in pixels.
"""

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from torch import Tensor

from vitcli.errors import VitError, nearest

METHODS = ("paper", "timm")


def resample_posemb(
    posemb_1TD: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_prefix: int = 1,
    method: str = "paper",
) -> Tensor:
    """Resample a learned position embedding to another patch grid.

    A larger image at the same patch size has more patches than the embedding has rows, so the
    rows are interpolated in 2-D, each at the place of its patch in the image. The class token
    has no place in the image and stays as it is.
    Source: paper, section 3.2. It names no kernel; bilinear with aligned corners is the zoom of
    the authors' code (equal to 1e-14 in float64).

    Args:
        posemb_1TD: (1, num_prefix + H*W, D), class token first, any float dtype.
        old_grid: (H, W) in patches, not pixels. Never guessed from T: 16 rows may be 4x4 or 2x8.
        new_grid: (H', W') in patches.
        num_prefix: tokens without a place in the image: the class token, registers.
        method: "paper", or "timm": bicubic with antialias and half-pixel centres, as timm resamples
            when it loads a state dict or changes the image size.

    Returns:
        (1, num_prefix + H'*W', D), same dtype and device; computed in float32.

    Raises:
        VitError: T is not num_prefix + H*W, or there is no such method.
    """
    check_method(method)
    height, width = old_grid
    if num_prefix < 0 or posemb_1TD.shape[1] != num_prefix + height * width:
        raise VitError(
            f"a position embedding of {posemb_1TD.shape[1]} rows does not cover a grid of {height}x{width}",
            where="position embedding",
            fix="name the image size these weights were trained at",
        )
    if method == "timm":
        return resample_abs_pos_embed(
            posemb_1TD, new_size=list(new_grid), old_size=list(old_grid), num_prefix_tokens=num_prefix
        )
    prefix_1SD, grid_1ND = posemb_1TD[:, :num_prefix], posemb_1TD[:, num_prefix:]
    grid_1DHW = grid_1ND.unflatten(1, old_grid).permute(0, 3, 1, 2)
    resampled_1DHW = F.interpolate(grid_1DHW.float(), size=new_grid, mode="bilinear", align_corners=True)
    resampled_1ND = resampled_1DHW.flatten(2).transpose(1, 2).to(posemb_1TD.dtype)
    return torch.cat([prefix_1SD, resampled_1ND], dim=1)


def resample_patch_embedding(kernel_DCPP: Tensor, patch_size: int, *, method: str) -> Tensor:
    """Resample the patch projection to another patch size: the pseudo-inverse resize of FlexiViT.

        new kernel = pinv(B^T) kernel        B resizes a patch, as a matrix

    With a larger patch, an enlarged patch gets exactly the response of the old patch. With a smaller one the
    responses are the closest in least squares over patches of white noise.
    Source: arXiv 2212.08013, section 3.4, and big_vision's flexi/vit.py. It is not in the ViT paper.

    Args:
        kernel_DCPP: weight of the convolution that makes the tokens, any float dtype; its bias stays.
        patch_size: side of the new patch in pixels.
        method: "paper": B is bilinear without antialias, as in FlexiViT's code, so a kernel made smaller by
            more than 2 ignores some pixels; "timm": bicubic with antialias, timm's defaults.

    Returns:
        (D, C, patch_size, patch_size), same dtype and device; computed in float32.

    Raises:
        VitError: the patch size is not positive, or there is no such method.
    """
    check_method(method)
    if patch_size < 1:
        fix = "take a patch size of 1 or more"
        raise VitError(f"a patch of {patch_size} pixels cannot be projected", where="patch size", fix=fix)
    options = {"interpolation": "bilinear", "antialias": False} if method == "paper" else {}
    return resample_patch_embed(kernel_DCPP, [patch_size, patch_size], **options)


def similarity_at_landmarks(
    old_1TD: Tensor,
    old_grid: tuple[int, int],
    new_1TD: Tensor,
    new_grid: tuple[int, int],
    *,
    num_prefix: int,
) -> dict[str, float]:
    """Compare two position embeddings at the same places of the image, on any two grids.

    Both are sampled, bilinear with aligned corners, at the corners of the image, the middles of its edges and
    its centre. Bilinear resampling with aligned corners keeps the corners exactly (similarity 1), and the
    midpoints where both grids have odd sides.

    Returns:
        Cosine similarities from -1 to 1, 0 where an embedding is zero: "corners" is the smallest of the four
        corners, "midpoints" the smallest of the four middles of edges and the centre.

    Raises:
        VitError: an embedding does not cover its grid.
    """
    old_9D, new_9D = (
        resample_posemb(posemb.float(), grid, (3, 3), num_prefix=num_prefix)[0, num_prefix:]
        for posemb, grid in ((old_1TD, old_grid), (new_1TD, new_grid))
    )
    similarities = F.cosine_similarity(old_9D, new_9D, dim=-1).tolist()  # row by row from the upper left
    corners = [similarities[i] for i in (0, 2, 6, 8)]
    midpoints = [similarities[i] for i in (1, 3, 4, 5, 7)]
    return {"corners": min(corners), "midpoints": min(midpoints)}


def check_method(method: str) -> None:
    """Refuse a resampling method that is not in METHODS."""
    if method not in METHODS:
        raise VitError(
            f"there is no resampling method {method!r}{nearest(method, METHODS)}",
            where="--method (recipe key model.posemb_resample)",
            fix=f"take one of {', '.join(METHODS)}",
        )
