"""What the paper looks at inside a network (sections 4.5, D.7 and D.8), as arrays.

B images, A heads, S prefix tokens such as the class token, N = H*W patches, T = S + N tokens, D filters or
hidden width, C channels, P x Q a filter's height and width, K components.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_SHARE = 1e-12  # of the variance; what is below is rounding and has no direction


def filter_components(filters_DCPQ: Tensor, num_components: int) -> tuple[Tensor, Tensor]:
    """Principal components of the filters that make the tokens (paper, figure 7, left).

    Each filter is one vector of C*P*Q numbers, centred over the filters as principal components are; the
    paper does not say. A component is as good as its negative: here its largest entry is positive.

    Returns:
        (K, C, P, Q) components of length 1, the strongest first, and (K,) the share of the variance of each;
        float64. K is `num_components`, or fewer where the filters span fewer dimensions.
    """
    filters_DF = filters_DCPQ.double().flatten(1)
    directions_KF, shares_K = _components(filters_DF, num_components)
    return directions_KF.unflatten(1, filters_DCPQ.shape[1:]), shares_K


def position_similarity(posemb_ND: Tensor) -> Tensor:
    """(N, N) cosine of each patch's position embedding with every other's (paper, figure 7, centre).

    float64; 0 where an embedding is zero.
    """
    directions_ND = F.normalize(posemb_ND.double(), dim=-1)
    return directions_ND @ directions_ND.T


def similarity_by_offset(similarity_NN: Tensor, grid: tuple[int, int]) -> dict[str, float | None]:
    """Mean similarity of two patches of one row, of one column, and of neither; None where there are none."""
    rows_N, columns_N = _rows_and_columns(grid)
    in_row_NN, in_column_NN = rows_N[:, None] == rows_N, columns_N[:, None] == columns_N
    pairs = {
        "same_row": in_row_NN & ~in_column_NN,
        "same_column": in_column_NN & ~in_row_NN,
        "elsewhere": ~in_row_NN & ~in_column_NN,
    }
    return {
        name: float(similarity_NN[which].mean()) if which.any() else None for name, which in pairs.items()
    }


def patch_distances(grid: tuple[int, int], patch_size: int) -> Tensor:
    """(N, N) distances in pixels between the centres of patches, float64.

    Args:
        grid: (H, W) in patches.
        patch_size: pixels from one patch to the next, of a hybrid its whole stride (paper, section D.7).
    """
    centres_N2 = patch_size * torch.stack(_rows_and_columns(grid), dim=1).double()
    return (centres_N2[:, None] - centres_N2).norm(dim=-1)


def attention_distance(
    attention_BATT: Tensor, distances_NN: Tensor, *, num_prefix: int, renormalise: bool
) -> Tensor:
    """(B, A), how far a head looks: pixels from query to key, weighted by attention (paper, figure 7, right).

    Prefix tokens have no place in the image and are left out, as queries and as keys.

    Args:
        attention_BATT: rows are queries and sum to 1.
        distances_NN: see `patch_distances`; in the dtype and on the device of the attention.
        renormalise: whether the weights on the patches are made to sum to 1 again, as in an average.
            The paper is silent; widely copied code leaves them smaller by what the prefix tokens get.
    """
    weights_BANN = attention_BATT[..., num_prefix:, num_prefix:]
    lengths_BAN = torch.einsum("baij,ij->bai", weights_BANN, distances_NN)
    if renormalise:
        # A query that looks at prefix tokens alone looks nowhere, and so 0 pixels far.
        lengths_BAN = lengths_BAN / weights_BANN.sum(dim=-1).clamp_min(torch.finfo(weights_BANN.dtype).tiny)
    return lengths_BAN.mean(dim=-1)


def rollout_layer(below_BTT: Tensor | None, attention_BATT: Tensor, *, residual: bool) -> Tensor:
    """(B, T, T), attention from a layer's tokens to the patches and prefix tokens that went into the first.

    The weights are averaged over the heads and multiplied with those of all layers below (paper, D.8).

    Args:
        below_BTT: what this gave for the layer below, None for the first layer.
        residual: whether each token also attends to itself by the skip connection, half and half, as in the
            method's own paper (Abnar & Zuidema, arXiv 2005.00928); the ViT paper's text leaves that out.
    """
    mean_BTT = attention_BATT.mean(dim=1)
    if residual:
        mean_BTT = (mean_BTT + torch.eye(mean_BTT.shape[-1]).to(mean_BTT)) / 2
        mean_BTT = mean_BTT / mean_BTT.sum(dim=-1, keepdim=True)
    return mean_BTT if below_BTT is None else mean_BTT @ below_BTT


def output_attention(attention_XTT: Tensor, *, num_prefix: int, reads_token: bool) -> Tensor:
    """(..., N), what the output gives to each patch: the class token's row, or the mean of the patches'."""
    queries_XTT = attention_XTT[..., :1, :] if reads_token else attention_XTT[..., num_prefix:, :]
    return queries_XTT.mean(dim=-2)[..., num_prefix:]


def feature_colours(features_BND: Tensor) -> tuple[Tensor, Tensor]:
    """Features of patches as colours: their first three principal components, over all images together.

    Returns:
        (B, N, 3) red, green and blue from 0 to 1, each stretched from the 1st to the 99th hundredth of its
        values, and (3,) the share of the variance of each; 0 for components that there are not.
    """
    flat_MD = features_BND.double().flatten(0, 1)
    directions_KD, found_K = _components(flat_MD, 3)
    missing = 3 - len(found_K)
    directions_3D, shares_3 = F.pad(directions_KD, (0, 0, 0, missing)), F.pad(found_K, (0, missing))
    values_M3 = (flat_MD - flat_MD.mean(dim=0)) @ directions_3D.T
    low_3, high_3 = (_quantile(values_M3, share) for share in (0.01, 0.99))
    span_3 = torch.where(high_3 > low_3, high_3 - low_3, 1.0)
    colours_M3 = torch.where(shares_3 > 0, ((values_M3 - low_3) / span_3).clamp(0, 1), 0.5)
    return colours_M3.unflatten(0, features_BND.shape[:2]), shares_3


def attention_overlay(images_BHWC: Tensor, maps_Bhw: Tensor, *, full_at: float) -> Tensor:
    """(B, H, W, C) uint8 images, each as bright as its map there, enlarged bilinearly (paper, section D.8).

    Args:
        full_at: share of the patches that are darker than in full light; with 1 only the brightest is in it,
            and one patch that draws all attention leaves the rest dark.
    """
    full_B1 = maps_Bhw.flatten(1).double().quantile(full_at, dim=1, keepdim=True).clamp_min(1e-30)
    maps_B1hw = (maps_Bhw / full_B1[:, :, None]).clamp_max(1)[:, None].float()
    light_B1HW = F.interpolate(maps_B1hw, size=images_BHWC.shape[1:3], mode="bilinear", align_corners=False)
    return (images_BHWC * light_B1HW.permute(0, 2, 3, 1)).round().to(torch.uint8)


def map_correlation(first_MHW: Tensor, second_MHW: Tensor) -> Tensor:
    """(M,) Pearson correlation of maps of the same pictures; the smaller grid is enlarged bilinearly."""
    sizes = [found.shape[1:] for found in (first_MHW, second_MHW)]
    size = max(sizes, key=lambda shape: shape[0] * shape[1])
    same = [
        F.interpolate(found[:, None].double(), size=size, mode="bilinear", align_corners=False).flatten(1)
        for found in (first_MHW, second_MHW)
    ]
    return F.cosine_similarity(*(found - found.mean(dim=1, keepdim=True) for found in same), dim=1)


def _components(vectors_MF: Tensor, num_components: int) -> tuple[Tensor, Tensor]:
    """(K, F) directions and (K,) shares of the variance, by the eigenvectors of the smaller product."""
    centred_MF = vectors_MF - vectors_MF.mean(dim=0)
    is_wide = centred_MF.shape[0] < centred_MF.shape[1]
    values, vectors = torch.linalg.eigh(
        centred_MF @ centred_MF.T if is_wide else centred_MF.T @ centred_MF
    )  # ascending
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    total, least = (
        values.sum(),
        LEAST_SHARE * vectors_MF.square().sum(),
    )  # vectors all alike differ by rounding
    shares = values / total if total > least else torch.zeros_like(values)
    kept = int((shares[:num_components] > LEAST_SHARE).sum())
    found_FK = vectors[:, :kept]
    directions_KF = F.normalize(centred_MF.T @ found_FK if is_wide else found_FK, dim=0).T
    largest_K1 = directions_KF.abs().argmax(dim=1, keepdim=True) if kept else None
    signs_K1 = directions_KF.gather(1, largest_K1).sign() if kept else 1
    return directions_KF * signs_K1, shares[:kept]


def _quantile(values_M3: Tensor, share: float) -> Tensor:
    """Of each column, by sorting: torch's own takes 16 million numbers at most."""
    return values_M3.sort(dim=0).values[round(share * (len(values_M3) - 1))]


def _rows_and_columns(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    height, width = grid
    places_N = torch.arange(height * width)
    return places_N // width, places_N % width
